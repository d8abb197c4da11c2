// Measures the time from the moment that a process attaches to a daemon until its first completion, for scripts/bench.
//
//   first-completion TIMES
//
// Measures TIMES times, and prints the milliseconds as JSON.
#include <cstdio>

#include "attach/attached_pair.hpp"
#include "attach/daemon_fixture.hpp"

namespace pollcore::test {
namespace {

int measure(int times) {
    TemporaryDirectory directory;
    const Config config = daemon_config(directory.path());
    Process daemon({"/usr/bin/setpriv", "--pdeathsig", "KILL", pollcored_path(), "--config",
                    directory.write("pollcored.toml", print_config(config)).string()},
                   {}, directory.path());
    const AttachedPair there(config.attach.path);  // makes sure that the daemon is ready
    for (int i = 0; i < times; ++i) {
        const auto began = Clock::now();
        AttachedPair one(config.attach.path);
        one.submit();
        Completion completion;
        while (one.session.poll({&completion, 1}) == 0) {
            if (Clock::now() - began > kPatience) {
                std::fputs("first-completion: nothing completes\n", stderr);
                return 1;
            }
            sched_yield();
        }
        std::printf("%s%.3f", i == 0 ? "[" : ", ",
                    std::chrono::duration<double, std::milli>(Clock::now() - began).count());
    }
    std::puts("]");
    return 0;
}

}  // namespace
}  // namespace pollcore::test

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fputs("usage: first-completion TIMES\n", stderr);
        return 2;
    }
    return pollcore::test::measure(std::atoi(argv[1]));
}
