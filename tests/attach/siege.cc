// Attacks a daemon, for scripts/bench. Measures how long the daemon's worker stood still, and how two well-behaved
// attachments of this process were served. The attacks share CPU 0 with this process and, on a machine with two CPUs,
// with the daemon's other threads. The worker has its own CPU.
//
//   siege SECONDS [ATTACK]
//
// Runs all attacks at once, or only ATTACK. Prints JSON.
#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attach/daemon_fixture.hpp"
#include "base/clock.hpp"

namespace pollcore::test {
namespace {

const std::vector<std::pair<const char*, const char*>> kAttacks{
    {"hostile", "garbage-messages"},   {"hostile", "garbage-requests"},      {"hostile", "connection-flood"},
    {"hostile", "descriptor-flood"},   {"hostile", "lingering-descriptors"}, {"hostile", "no-reading"},
    {"hostile", "bad-memory"},         {"hostile", "garbage-slots"},         {"hostile", "flipped-slots"},
    {"hostile", "flipped-everything"}, {"hostile", "moving-indices"},        {"hostile", "others-handles"},
    {"greedy", "much-memory"},         {"greedy", "many-objects"},           {"greedy", "many-requests"},
    {"greedy", "silent-addresses"}};

void stay_on(std::uint32_t cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    (void)::sched_setaffinity(0, sizeof(one), &one);
}

double milliseconds_of(std::uint64_t cycles) {
    return static_cast<double>(cycles) / cycles_per_ns() / 1e6;
}

int besiege(std::chrono::seconds time, const std::string& only) {
    TemporaryDirectory directory;
    Config config = daemon_config(directory.path());
    config.workers[0].idle = IdlePolicy::spin;
    config.log_level = LogLevel::error;
    const std::string socket = config.attach.path;
    Process daemon({"/usr/bin/setpriv", "--pdeathsig", "KILL", pollcored_path(), "--config",
                    directory.write("pollcored.toml", print_config(config)).string()},
                   {}, directory.path());
    stay_on(0);
    Witness witness(socket);
    Caller caller(socket);
    while (witness.checked() < 100 || caller.rounds() < 3) {
        std::this_thread::sleep_for(1ms);
    }
    const std::uint64_t checked = witness.checked();
    const std::uint64_t rounds = caller.rounds();
    const auto until = Clock::now() + time;
    std::vector<std::unique_ptr<Process>> attackers;
    const auto attack = [&](const std::pair<const char*, const char*>& each) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
        return std::make_unique<Process>(
            std::vector<std::string>{test_program(each.first), each.second, socket, std::to_string(left.count())},
            std::vector<std::string>{}, directory.path());
    };
    std::vector<std::pair<const char*, const char*>> wanted;
    std::copy_if(kAttacks.begin(), kAttacks.end(), std::back_inserter(wanted),
                 [&](const auto& each) { return only.empty() || only == each.second; });
    if (wanted.empty()) {
        std::fprintf(stderr, "siege: there is no attack \"%s\"\n", only.c_str());
        return 2;
    }
    for (const auto& each : wanted) {
        attackers.push_back(attack(each));
    }
    int attacks = static_cast<int>(attackers.size());
    int turned_away = 0;
    while (Clock::now() < until) {
        for (std::size_t i = 0; i < attackers.size(); ++i) {
            if (const std::optional<int> code = attackers[i]->wait(0ms); code && Clock::now() < until) {
                turned_away += *code != 0;  // the other attacks may leave no place for this attacker
                if (*code != 0 && wanted.size() == 1) {
                    std::fprintf(stderr, "%s: exit code %d: %s\n", wanted[i].second, *code,
                                 attackers[i]->out().c_str());
                    return 1;
                }
                // The attacker has ended, for example because the daemon has ended its connection: starts the next
                // attacker.
                attackers[i] = attack(wanted[i]);
                ++attacks;
            }
        }
        std::this_thread::sleep_for(10ms);
    }
    const std::uint64_t checked_meanwhile = witness.checked() - checked;
    const std::uint64_t rounds_meanwhile = caller.rounds() - rounds;
    const double longest_step = milliseconds_of(witness.daemon().worker_counters(0).longest_step_cycles.value());
    const std::string wrong_calls = caller.end();
    witness.join();
    attackers.clear();
    std::printf(
        "{\"seconds\": %lld, \"attacks\": %d, \"turned_away\": %d, \"longest_step_ms\": %.3f, \"messages_checked\": "
        "%llu, \"rounds_of_calls\": %llu, "
        "\"longest_call_ms\": %.3f, \"wrong\": \"%s%s\"}\n",
        static_cast<long long>(time.count()), attacks, turned_away, longest_step,
        static_cast<unsigned long long>(checked_meanwhile), static_cast<unsigned long long>(rounds_meanwhile),
        static_cast<double>(caller.longest_call().count()) / 1000, wrong_calls.c_str(), witness.wrong().c_str());
    daemon.signal(SIGTERM);
    if (daemon.wait() != 0) {
        std::fprintf(stderr, "%s", daemon.err().c_str());
        return 1;
    }
    return wrong_calls.empty() && witness.wrong().empty() ? 0 : 1;
}

}  // namespace
}  // namespace pollcore::test

int main(int argc, char** argv) {
    if (argc != 2 && argc != 3) {
        std::fprintf(stderr, "usage: siege SECONDS [ATTACK]\n");
        return 2;
    }
    return pollcore::test::besiege(std::chrono::seconds(std::atoi(argv[1])), argc == 3 ? argv[2] : "");
}
