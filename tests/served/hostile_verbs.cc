// A program of verbs that uses libpollcore-verbs.so as wrongly as it can. It knows only libibverbs. What it does to
// itself is its own matter, so most attacks are made by children, round by round, and a child may crash. What matters
// is that nobody else notices.
//
//   hostile-verbs ATTACK MILLISECONDS
//
// runs rounds until the time is over, and then prints "done" and how many rounds there were. If what must work did not
// work, it prints a line that begins with "failed".
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>

#include "hostile_attacks.hpp"
#include "hostile_objects.hpp"

namespace pollcore::test::hostile {
namespace {

constexpr unsigned kPatienceSeconds = 60;

// With `survives` the function is no attack: no child may fail, and one that takes long is only slow.
void run_in_children(void (*attack)(), bool survives) {
    int rounds = 0;
    int crashed = 0;
    int hung = 0;
    for (; rounds == 0 || !over(); ++rounds) {
        const pid_t child = ::fork();
        if (child == 0) {
            (void)::alarm(survives ? kPatienceSeconds : 3);  // ends a child that hangs
            g_random.seed(g_random() + static_cast<std::uint64_t>(::getpid()));
            attack();
            ::_exit(0);
        }
        int status = 0;
        if (child < 0 || ::waitpid(child, &status, 0) != child) {
            fail("a child cannot be started");
        }
        if (WIFEXITED(status) && WEXITSTATUS(status) == kFailed) {
            ::_exit(kFailed);  // told
        }
        if (survives && status != 0) {
            std::printf("failed: a child that did nothing wrong, with the wait status %d\n", status);
            std::fflush(stdout);
            ::_exit(kFailed);
        }
        hung += WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
        crashed += WIFSIGNALED(status) && WTERMSIG(status) != SIGALRM;
    }
    std::printf("done: %d rounds, %d crashed, %d hung\n", rounds, crashed, hung);
}

}  // namespace

}  // namespace pollcore::test::hostile

int main(int argc, char** argv) {
    using namespace pollcore::test::hostile;
    const std::map<std::string, void (*)()> attacks{
        {"freed-objects", use_freed_objects},
        {"exits-in-calls", exit_in_a_call},
        {"closed-descriptors", close_all_descriptors},
        {"unmapped-rings", unmap_what_is_shared},
        {"garbled-rings", garble_rings},
        {"exhausted-objects", exhaust_objects},
        {"any-end", end_somehow},
        {"unloaded-library", unload_the_library},
        {"wild-requests", post_wild_requests},
        {"races", race_with_itself},
        {"threads", use_threads},
        {"misused-events", misuse_events},
    };
    const std::string attack = argc > 1 ? argv[1] : "";
    if (attack == "end-at-once") {
        return 0;
    }
    const bool forks = attack == "forked-children" || attack == "forked-children-after-init";
    if (argc != 3 || (!forks && !attacks.contains(attack))) {
        std::fprintf(stderr, "usage: hostile-verbs ATTACK MILLISECONDS\n");
        return 2;
    }
    const rlimit none{0, 0};
    (void)::setrlimit(RLIMIT_CORE, &none);
    g_end = Clock::now() + std::chrono::milliseconds(std::atoi(argv[2]));
    g_random.seed(std::random_device{}());
    if (forks) {
        fork_children(attack == "forked-children-after-init");
    } else {
        run_in_children(attacks.at(attack), attack == "threads");
    }
    return 0;
}
