#include "run_command_line.hpp"

#include "pollcore/attach.hpp"

namespace pollcore::run {

RunCommandLine::RunCommandLine() : socket(kAttachPath) {
    app.footer(manual::footer(sections()));
    auto& help = manual::ShortHelp::add_to(app);
    help.has_one_page();
    app.prefix_command();
    app.set_version_flag("--version", manual::version_text("pollcore-run"), "Print the version and how this was built");
    app.add_option("--socket", socket, "The daemon's socket: `path` in [attach] of its configuration")
        ->type_name("SOCKET")
        ->capture_default_str();
    app.add_flag("--beside", beside,
                 "List the kernel's devices that the daemon serves, too. The daemon's then have names of their own, "
                 "with pollcore- before them");
    app.add_option("--worker", worker,
                   "The daemon's worker for all completion queues. Without it, completion queues of different queue "
                   "pairs may have different workers")
        ->type_name("WORKER");
    app.add_option("--log", log, "What the library says on standard error: nothing, each thing once, or all")
        ->check(CLI::IsMember({"off", "once", "all"}).description(""))
        ->type_name("{off,once,all}")
        ->capture_default_str();
    app.add_flag(
        "--check", check,
        "Run nothing. Say which functions of the verbs the program and its libraries use, and whether they are "
        "served. The program may also be a library, such as a plugin");
    help.show(app, {{"--socket", "The daemon's socket"},
                    {"--beside", "List the kernel's devices, too"},
                    {"--worker", "The worker for all completion queues"},
                    {"--log", "off, once, all"},
                    {"--check", "Say whether the program can be served"},
                    {"--version"}});
}

std::vector<std::string> RunCommandLine::command() const {
    return app.remaining();
}

std::vector<manual::Section> RunCommandLine::sections() {
    return {{"Environment",
             {{"",
               "pollcore-run sets these for the program, and a program can do so itself instead of being run by "
               "pollcore-run."},
              {"LD_PRELOAD", "The library libpollcore-verbs.so, before what is there already."},
              {"POLLCORE_SOCKET", "--socket"},
              {"POLLCORE_VERBS", "\"beside\" with --beside"},
              {"POLLCORE_VERBS_WORKER", "--worker"},
              {"POLLCORE_VERBS_LOG", "--log"}}},
            {"Exit status",
             {{"", "That of the program. Besides:"},
              {"1", "With --check: nothing of the program can be served."},
              {"125", "pollcore-run failed: the daemon does not run, or does not permit it."},
              {"126", "The program is there and cannot be run."},
              {"127", "There is no such program."}}}};
}

}  // namespace pollcore::run
