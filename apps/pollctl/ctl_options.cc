#include "ctl_options.hpp"

#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "common/control_wire.hpp"
#include "ctl_command_line.hpp"

namespace pollcore::ctl {
namespace {

constexpr double kHour = 3600;

std::vector<std::string> kinds() {
    return {control_wire::kKinds.begin(), control_wire::kKinds.end()};
}

std::chrono::milliseconds milliseconds(double seconds) {
    return std::chrono::milliseconds(std::llround(seconds * 1000));
}

Json command(std::string_view name) {
    return {{"protocol", control_wire::kProtocol}, {"command", name}};
}

std::optional<std::uint32_t> as_number(const std::string& text) noexcept {
    std::uint32_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

void put_disconnect(const CtlCommandLine& line, Options& options) {
    if (line.disconnect_what == "queue-pair") {
        if (line.grace != 0) {
            throw CLI::ValidationError("--timeout", "only a process has time to detach");
        }
        options.command = command("disconnect-queue-pair");
        options.command["queue_pair"] = line.disconnect_which;
        if (!line.device.empty()) {
            options.command["device"] = line.device;
        }
        return;
    }
    const std::optional<std::uint32_t> number = as_number(line.disconnect_which);
    if (!number || !line.device.empty()) {
        throw CLI::ValidationError("disconnect process",
                                   "a process has a number, as `pollctl list processes` shows it");
    }
    options.grace = milliseconds(line.grace);
    options.until_gone = number;
    options.command = command("disconnect-process");
    options.command["process"] = *number;
    options.command["grace_ms"] = options.grace.count();
}

}  // namespace

CtlCommandLine::CtlCommandLine() : socket("/run/pollcore/control.sock") {
    app.footer(manual::footer(sections()));
    auto& help = manual::ShortHelp::add_to(app);
    help.has_one_page();
    app.require_subcommand(1);
    app.fallthrough();  // --json may stand behind the subcommand, too
    app.set_version_flag("--version", manual::version_text("pollctl"), "Print the version and how this was built");
    app.add_option("--socket", socket, "The daemon's control socket: `path` in [control] of its configuration")
        ->type_name("SOCKET")
        ->capture_default_str();
    app.add_flag("--json", json, "Print the answer as one line of JSON");
    app.add_option("--answer-within", answer_within,
                   "How long to wait for the daemon's answer. The daemon may carry the command out later all the same")
        ->type_name("SECONDS")
        ->check(CLI::Range(0.1, 100 * kHour).description(""))
        ->capture_default_str();

    of_status = app.add_subcommand("status", "Show how the daemon is, in numbers");
    of_list = app.add_subcommand("list", "List workers, queue pairs, processes and so on");
    of_list->add_option("kind", list_kind, "What to list")
        ->required()
        ->check(CLI::IsMember(kinds()).description(""))
        ->type_name(fmt::format("{{{}}}", fmt::join(kinds(), ",")));
    of_show = app.add_subcommand("show", "Show what an attached process has, and its limits");
    of_show->add_option("what", show_what, "What to show")
        ->required()
        ->check(CLI::IsMember({"process"}).description(""))
        ->type_name("{process}");
    of_show->add_option("number", show_number, "The process's number, as `list processes` shows it")
        ->required()
        ->type_name("NUMBER");
    of_disconnect = app.add_subcommand("disconnect", "Disconnect a process or a queue pair");
    of_disconnect->add_option("what", disconnect_what, "What to disconnect")
        ->required()
        ->check(CLI::IsMember({"process", "queue-pair"}).description(""))
        ->type_name("{process,queue-pair}");
    of_disconnect
        ->add_option("which", disconnect_which,
                     "The process's number, as `list processes` shows it; or the queue pair's number or name")
        ->required()
        ->type_name("WHICH");
    of_disconnect
        ->add_option("--timeout", grace,
                     "First tell the process (POLLCORE_EVENT_STOPPING), and give it this time to detach by itself")
        ->type_name("SECONDS")
        ->check(CLI::Range(0.0, kHour).description(""))
        ->capture_default_str();
    of_disconnect
        ->add_option("--device", device, "The queue pair's device, if several have a queue pair of this number")
        ->type_name("DEVICE");
    of_drain = app.add_subcommand("drain", "Take no new processes and connections");
    of_drain->add_option("--wait", drain_wait, "Then wait until the last one is gone, for this time at most")
        ->type_name("SECONDS")
        ->check(CLI::Range(0.0, 100 * kHour).description(""));
    of_resume = app.add_subcommand("resume", "Take new processes and connections again");
    of_stop = app.add_subcommand("stop", "Stop the daemon, as SIGTERM does");
    of_reload = app.add_subcommand("reload", "Read the configuration again, as SIGHUP does");
    of_log_level = app.add_subcommand("log-level", "Show the log level, or set it");
    of_log_level->add_option("level", level, "Least important lines to log, until the next reload or restart")
        ->check(CLI::IsMember({"error", "warning", "info", "debug"}).description(""))
        ->type_name("{error,warning,info,debug}");
    of_health = app.add_subcommand("health", "Say whether the daemon's threads make progress");
    of_version = app.add_subcommand("version", "Show the daemon's version");
    help.show(app, {{"--socket", "The daemon's control socket"},
                    {"--json"},
                    {"--answer-within", "How long to wait for an answer"},
                    {"--version"}});
    help.show(*of_list, {{"kind",
                          "workers, devices, services, processes, sessions, queue-pairs, shared-receive-queues, "
                          "receive-pools, listeners, memory-regions"}});
    help.show(*of_show, {{"what", "process"}, {"number"}});
    help.show(*of_disconnect, {{"what", "process, queue-pair"}, {"which"}, {"--timeout"}, {"--device"}});
    help.show(*of_drain, {{"--wait"}});
    help.show(*of_log_level, {{"level", "error, warning, info, debug"}});
}

std::vector<manual::Section> CtlCommandLine::sections() {
    return {{"Exit status",
             {{"0", "Done. With health: all threads make progress."},
              {"1",
               "The daemon refused the command or could not carry it out; stderr has the reason. With health: a "
               "thread hangs."},
              {"2", "The command line is wrong."},
              {"3", "There is no daemon at the socket, it gives no answer, or this user may not give commands."}}},
            {"Who may give commands",
             {{"",
               "Root, the daemon's user, and the members of the group in [control] of its configuration. The daemon's "
               "log has each action, with the user and the process that gave the command."}}},
            {"Files", {{"/run/pollcore/control.sock", "The control socket, by the configuration that is installed."}}}};
}

ParsedOptions parse_options(int argc, const char* const* argv) {
    CtlCommandLine line;
    Options options;
    try {
        line.app.parse(argc, argv);
        if (line.of_list->parsed()) {
            options.command = command("list");
            options.command["kind"] = line.list_kind;
        } else if (line.of_show->parsed()) {
            options.command = command("show-process");
            options.command["process"] = line.show_number;
        } else if (line.of_disconnect->parsed()) {
            put_disconnect(line, options);
        } else if (line.of_drain->parsed()) {
            options.command = command("drain");
            options.drain_wait = milliseconds(line.drain_wait);
        } else if (line.of_log_level->parsed() && !line.level.empty()) {
            options.command = command("set-log-level");
            options.command["level"] = line.level;
        } else {  // the command of the daemon has the name of the subcommand, and no arguments
            options.command = command(line.app.get_subcommands().front()->get_name());
        }
    } catch (const CLI::ParseError& error) {
        return {std::nullopt, line.app.exit(error) == 0 ? kExitOk : kExitUsage};
    }
    options.socket = line.socket;
    options.json = line.json;
    options.answer_within = milliseconds(line.answer_within);
    return {std::move(options), kExitOk};
}

}  // namespace pollcore::ctl
