// pollperf's command line, and the CPUs on which its threads run.
#include <algorithm>
#include <iterator>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "config/cpus.hpp"
#include "pollperf/command_line.hpp"
#include "pollperf/cpu_choice.hpp"
#include "pollperf/options.hpp"
#include "pollperf/wake.hpp"

namespace pollcore::perf {
namespace {

// ---- The command line ----

CommandLine typed(const std::string& line) {
    std::istringstream text("pollperf " + line);
    const std::vector<std::string> words{std::istream_iterator<std::string>(text), {}};
    std::vector<const char*> argv;
    for (const std::string& word : words) {
        argv.push_back(word.c_str());
    }
    return parse_command_line(static_cast<int>(argv.size()), argv.data());
}
LatOptions parse(const std::string& line) {
    return resolve(typed("lat " + line).lat.value());
}
LatOptions parse(const std::string& line, const config::Cpus& cpus) {
    return resolve(typed("lat " + line).lat.value(), cpus);
}

struct Refused {
    std::string line;
    std::string says;
    friend std::ostream& operator<<(std::ostream& out, const Refused& refused) { return out << refused.line; }
};

class PollperfRefuses : public testing::TestWithParam<Refused> {};

TEST_P(PollperfRefuses, WithTheOptionAndTheReason) {
    try {
        (void)parse(GetParam().line);
        FAIL() << GetParam().line << " was accepted";
    } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find(GetParam().says), std::string::npos) << error.what();
    } catch (const ConfigError& error) {
        EXPECT_NE(std::string(error.what()).find(GetParam().says), std::string::npos) << error.what();
    }
}

const Refused kRefused[] = {
    {"", "say what to measure"},
    {"-d soft0 -o sned", "there is no operation 'sned'"},
    {"-d soft0 -o send,send", "'send' is there twice"},
    {"-d soft0 -o ,", "there is no operation"},
    {"-d rxe0 -o send,write", "one operation at a time"},
    {"-d soft0 --path indirect", "--path indirect"},
    {"-d rxe0 --path both", "one path at a time"},
    {"-d soft0 -o fetch-add -s 4", "8 bytes always"},
    {"-d soft0 -s 0", "--size 0"},
    {"-d soft0 -n 1", "--iters 1"},
    {"-d rxe0 -x 1", "rdma_cm chooses the GID"},
    {"-d soft0 -x 0", "one GID"},
    {"-d rxe0 --rounds 4", "--rounds"},
    {"-d soft0 -p 18515", "both ends are in this one"},
    {"-d rxe0 -p 0", "--port 0"},
    {"-d rxe0 -p 65536", "--port 65536"},
    {"-d soft0 -I 100000", "--inline_size 100000"},
    {"-d soft0 --timeout 10", "--timeout 10"},
    {"-d soft0 --timeout 1ms", "100ms"},
    {"-d soft0 --path direct --core 100000", "may not run on that CPU"},
    {"-d soft0 --path direct --worker-core 1", "has no worker"},
    {"-d soft0 --path direct --flow credits", "plain verbs have none"},
    {"-d soft0 --path runtime --wait event --flow ring", "does not look at memory"},
    {"-d soft0 --path runtime --flow ring-a-ring", "there are off, credits, ring"},
    {"-d soft0 --idle sleep", "there is no way to wait called \"sleep\""},
    {"-d soft0 --wait [", "neither a word nor a value"},
    {"-d soft0 --wait event -o write", "no event tells of them"},
    {"--config loopback.toml --wait pause", "the configuration says how workers wait"},
    {"--config nowhere.toml", "nowhere.toml"},
    {"-d rxe0 --loopback 192.0.2.1", "both ends are in this process"},
};
INSTANTIATE_TEST_SUITE_P(Lines, PollperfRefuses, testing::ValuesIn(kRefused));

TEST(PollperfOptions, PerftestsLettersGiveAServerAndItsClient) {
    const LatOptions server = parse("-d rxe0 -p 18600 -s 64 -n 5000 -I 64 -F -R");
    EXPECT_EQ(server.role, Role::server);
    EXPECT_EQ(server.port, 18600);
    EXPECT_EQ(server.size, 64u);
    EXPECT_EQ(server.iterations, 5000u);
    EXPECT_EQ(server.inline_size, 64u);
    EXPECT_TRUE(server.direct);
    EXPECT_FALSE(server.runtime);
    const LatOptions client = parse("-d rxe0 -p 18600 -s 64 -n 5000 192.0.2.1");
    EXPECT_EQ(client.role, Role::client);
    EXPECT_EQ(client.address, "192.0.2.1:18600");
    EXPECT_EQ(client.warmup, server.warmup);
    EXPECT_EQ(parse("-d rxe0 fe80::1%eth0").address, "[fe80::1%eth0]:18515");
}

TEST(PollperfOptions, WhatIsNotGivenIsAsInPerftest) {
    const LatOptions options = parse("-d rxe0");
    EXPECT_EQ(options.ops, std::vector<Op>{Op::send});
    EXPECT_EQ(options.size, 2u);
    EXPECT_EQ(options.iterations, 1000u);
    EXPECT_EQ(options.port, 18515);
    EXPECT_EQ(options.config.devices.front().kind, DeviceConfig::Kind::verbs);
}

TEST(PollperfOptions, AFileGivesAllOperationsOnBothPaths) {
    const LatOptions options = parse("--config " POLLCORE_SOURCE_DIR "/config/loopback.toml");
    EXPECT_EQ(options.role, Role::both);
    EXPECT_EQ(options.ops.size(), std::size(kOps));
    EXPECT_TRUE(options.direct);
    EXPECT_TRUE(options.runtime);
    EXPECT_EQ(options.device, "soft0");
    EXPECT_EQ(options.worker, "worker0");
    EXPECT_NE(options.core, options.worker_core);
    EXPECT_EQ(size_of(options, Op::fetch_add), kAtomicSize);
    EXPECT_EQ(size_of(options, Op::send), 2u);
}

// ---- CPUs ----

const config::Cpus kOneCpu{{5}, {5}};
const config::Cpus kTwoCpus{{0, 1}, {0, 1}};

TEST(PollperfOnOneCpu, ThreadAndWorkerTakeTurnsUnlessTheyAreToldOtherwise) {
    for (const char* line : {"--config " POLLCORE_SOURCE_DIR "/config/loopback.toml", "-d soft0",
                             "-d soft0 --path runtime", "-d rxe0 --path runtime", "-d rxe0 --path runtime 192.0.2.1"}) {
        const LatOptions options = parse(line, kOneCpu);
        EXPECT_EQ(options.wait, Waiting::yield) << line;
        EXPECT_EQ(options.config.workers.front().idle, IdleLadder(IdlePolicy::yield)) << line;
        EXPECT_EQ(options.core, 5u) << line;
        EXPECT_EQ(options.worker_core, 5u) << line;
        EXPECT_TRUE(options.one_cpu()) << line;
    }
    EXPECT_EQ(parse("-d soft0 --path direct --wait spin", kOneCpu).wait, Waiting::spin);
    EXPECT_THROW((void)parse("-d soft0 --path runtime --wait spin", kOneCpu), UsageError);
    EXPECT_EQ(parse("-d soft0 --path runtime", kTwoCpus).wait, Waiting::spin);
    EXPECT_EQ(parse("-d soft0 --path runtime", kTwoCpus).config.workers.front().idle, IdleLadder(IdlePolicy::spin));
}

TEST(PollperfOnOneCpu, FewerIterationsAreUsualOnASoftwareDevice) {
    EXPECT_LT(parse("-d soft0", kOneCpu).iterations, parse("-d soft0", kTwoCpus).iterations);
    EXPECT_EQ(parse("-d soft0 -n 300000", kOneCpu).iterations, 300000u);
    EXPECT_EQ(parse("-d rxe0", kOneCpu).iterations, parse("-d rxe0", kTwoCpus).iterations);
}

TEST(PollperfOnOneCpu, WakeSaysThatItTakesTwo) {
    const WakeArguments arguments = typed("wake").wake.value();
    EXPECT_NE(resolve(arguments, kTwoCpus).core, resolve(arguments, kTwoCpus).worker_core);
    try {
        (void)resolve(arguments, kOneCpu);
        FAIL() << "it was accepted";
    } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find("on CPU 5 only"), std::string::npos) << error.what();
    }
}

TEST(PollperfPlacement, ClientAndServerOfAMachineGetOutOfEachOthersWay) {
    const std::set<std::uint32_t> allowed{0, 1, 2, 3};
    const Placement client = place({.role = Role::client, .needs_worker = true, .allowed = allowed});
    const Placement server = place({.role = Role::server, .needs_worker = true, .allowed = allowed});
    EXPECT_EQ(std::set({client.core, client.worker, server.core, server.worker}).size(), 4u);
    // With only two CPUs, the two measuring threads are on different CPUs, and so are the two workers.
    const Placement small_client = place({.role = Role::client, .needs_worker = true, .allowed = {0, 1}});
    const Placement small_server = place({.role = Role::server, .needs_worker = true, .allowed = {0, 1}});
    EXPECT_NE(small_client.core, small_server.core);
    EXPECT_NE(small_client.worker, small_server.worker);
}

TEST(PollperfPlacement, TheApplicationIsOnNoWorkersCpu) {
    const Placement placement = place({.needs_worker = true, .allowed = {0, 1, 2}, .workers = {0, 1}});
    EXPECT_EQ(placement.core, 2u);
    EXPECT_EQ(placement.worker, 0u);
    EXPECT_EQ(place({.needs_worker = true, .allowed = {0, 1}, .core = 1}).worker, 0u);
    EXPECT_EQ(place({.needs_worker = true, .allowed = {0, 1}, .worker_core = 0}).core, 1u);
}

TEST(PollperfPlacement, WhatCannotBeGrantedIsRefused) {
    EXPECT_THROW((void)place({.needs_worker = true, .allowed = {3}}), UsageError);
    const Placement turns = place({.needs_worker = true, .takes_turns = true, .allowed = {3}, .workers = {3}});
    EXPECT_EQ(turns.core, 3u);
    EXPECT_EQ(turns.worker, 3u);
    EXPECT_NE(place({.needs_worker = true, .takes_turns = true, .allowed = {2, 3}}).worker, 2u);
    EXPECT_THROW((void)place({.needs_worker = true, .takes_turns = true, .allowed = {3}, .core = 2}), UsageError);
    EXPECT_THROW((void)place({.needs_worker = true, .allowed = {0, 1}, .workers = {0, 1}}), UsageError);
    EXPECT_THROW((void)place({.needs_worker = true, .allowed = {0, 1}, .workers = {1}, .core = 1}), UsageError);
    EXPECT_THROW((void)place({.needs_worker = true, .allowed = {0, 1}, .core = 1, .worker_core = 1}), UsageError);
    EXPECT_EQ(place({.needs_worker = false, .allowed = {3}}).core, 3u);
}

}  // namespace
}  // namespace pollcore::perf
