#include "command_line.hpp"

#include <fmt/format.h>

#include "exit_code.hpp"
#include "perf_command_line.hpp"
#include "workload.hpp"

namespace pollcore::perf {
namespace {

/// Adds the options that every command has.
template <class Arguments>
void add_common_options(CLI::App& command, Arguments& arguments) {
    command.add_option("--core", arguments.core, "CPU of the application's threads (one that is no worker's)")
        ->type_name("CPU");
    command.add_option("--worker-core", arguments.worker_core, "CPU of the worker (another one)")->type_name("CPU");
    command.add_flag("--share-core", arguments.share_core,
                     "Let the worker run on a core that other runtimes may poll on, too");
    command.add_option("--json", arguments.json, "Write everything that was measured to this file, too")
        ->type_name("FILE");
}

void add_options(CLI::App& command, LatArguments& arguments) {
    command.add_option("ADDRESS", arguments.address, "Server to connect to; without it this is the server. Numeric");
    command
        .add_option("-o,--op", arguments.op,
                    "send, write, read, fetch-add, several with commas, or all (send; with --config all)")
        ->type_name("OPERATIONS");
    command
        .add_option("--path", arguments.path,
                    "direct: plain verbs on the calling thread. event: plain verbs with a completion channel. runtime: "
                    "through a worker. attached: through a worker, by a process that attaches. In one process also "
                    "both: direct and runtime; and all: attached, too (both where possible, else direct; with --attach "
                    "attached)")
        ->type_name("{direct,event,runtime,attached,both,all}");
    command
        .add_option("-d,--device", arguments.device,
                    "Device as ibv_devices(1) prints it; 'soft...' is a software device; with --config a name of the "
                    "file's")
        ->type_name("DEVICE");
    command
        .add_option("--config", arguments.config, "Take device and workers from this file; both ends in one process")
        ->type_name("FILE");
    command
        .add_option("--attach", arguments.attach,
                    "Path attached goes through the pollcored that listens at this socket; --config names what that "
                    "runs with. With ADDRESS this is a client, with --port a server, else both ends are in this "
                    "process")
        ->type_name("SOCKET");
    command.add_flag("--loopback", arguments.loopback, "Both ends in one process, on a verbs device");
    command.add_option("-p,--port", arguments.port, "Port of the server (18515)")->type_name("PORT");
    command.add_option("-s,--size", arguments.size, "Bytes of a message (2; fetch-add 8)")->type_name("BYTES");
    command
        .add_option("-n,--iters", arguments.iterations,
                    "Iterations that are timed (1000; on a software device 200000, with one CPU 20000)")
        ->type_name("COUNT");
    command.add_option("--warmup", arguments.warmup, "Iterations before them (a tenth, at least 100)")
        ->type_name("COUNT");
    command.add_option("--rounds", arguments.rounds, "Rounds of the iterations, in which paths take turns (10)")
        ->type_name("COUNT");
    command.add_option("-x,--gid-index", arguments.gid_index, "Index in the GID table, for both ends in one process")
        ->type_name("INDEX");
    command
        .add_option("-I,--inline_size", arguments.inline_size,
                    "Messages up to this size travel in the work request (220, or what the device takes; on a "
                    "software device 16)")
        ->type_name("BYTES");
    add_common_options(command, arguments);
    command
        .add_option("--wait", arguments.wait,
                    "How the application's thread waits: spin, yield or event. On path runtime the worker waits so, "
                    "too, and may also pause or monitor (spin; with one CPU yield)")
        ->type_name("{spin,yield,event,pause,monitor}");
    command
        .add_option("--idle", arguments.idle,
                    "How the worker waits, if not as --wait says: one of those, or as a configuration's idle, such as "
                    "'[{spin = \"20us\"}, \"event\"]'")
        ->type_name("LADDER");
    command
        .add_option(
            "--flow", arguments.flow,
            fmt::format("Flow control of path runtime: {} (off). Both ends must have the same one", flow_names()))
        ->type_name("{" + flow_names(",") + "}");
    command.add_flag("--verify", arguments.verify, "Check every byte that arrives");
    command.add_flag("--brief", arguments.brief, "Print one short table that needs no glossary, and what it means");
    command.add_option("--timeout", arguments.timeout, "Longest wait for a single message (10s)")->type_name("TIME");
    command.add_option("--client-timeout", arguments.client_timeout, "How long a server waits for its client (60s)")
        ->type_name("TIME");
    // Options of perftest, so that perftest's command lines are accepted.
    command.add_flag("-F,--CPU-freq", arguments.cpu_freq, "Accepted: CPU frequencies are never warned about");
    command.add_flag("-R,--rdma_cm", arguments.rdma_cm, "Accepted: connections are always made by rdma_cm");
}

void add_options(CLI::App& command, WakeArguments& arguments) {
    command
        .add_option("-d,--device", arguments.device,
                    "Device as ibv_devices(1) prints it; 'soft...' is a software device (soft0)")
        ->type_name("DEVICE");
    command
        .add_option("--wait", arguments.wait,
                    "A way for the worker to wait, as in a configuration: event, or '[{spin = \"20us\"}, \"event\"]'. "
                    "May be given several times (spin, pause, yield, a ladder up to event, event)")
        ->type_name("LADDER");
    command.add_option("-n,--iters", arguments.iterations, "Operations that are timed, of each kind (1000)")
        ->type_name("COUNT");
    command.add_option("--gap", arguments.gap, "Time between two operations (1ms)")->type_name("TIME");
    add_common_options(command, arguments);
}

}  // namespace

PerfCommandLine::PerfCommandLine() {
    auto& help = manual::ShortHelp::add_to(app);
    app.set_version_flag("--version", manual::version_text("pollperf"), "Print the version and how this was built");
    app.require_subcommand(1);
    app.get_formatter()->column_width(34);
    of_lat = app.add_subcommand("lat", "Latency of single operations: to and fro, one at a time");
    of_wake = app.add_subcommand(
        "wake", "What each way to wait costs: how long waking up takes, and how much CPU waiting does");
    for (CLI::App* each : {&app, of_lat, of_wake}) {
        each->footer(manual::footer(sections()));
    }
    add_options(*of_lat, lat);
    add_options(*of_wake, wake);
    help.show(app, {{"--version"}});
    help.show(*of_lat, {{"ADDRESS"},
                        {"--op", "send, write, read, fetch-add, or all (send)"},
                        {"--path", "What to measure: direct, event, runtime, attached, both, all"},
                        {"--device", "Device as ibv_devices(1) prints it, or soft0"},
                        {"--config", "Take device and workers from this file"},
                        {"--attach", "Attach to the pollcored that listens here"},
                        {"--port"},
                        {"--size"},
                        {"--iters", "Iterations that are timed"},
                        {"--flow", fmt::format("Flow control of path runtime: {} (off)", flow_names())},
                        {"--wait", "How to wait: spin, yield, event, pause, monitor"},
                        {"--core", "CPU of the application's threads"},
                        {"--worker-core", "CPU of the worker"},
                        {"--brief"},
                        {"--json"}});
    help.show(*of_wake, {{"--device"},
                         {"--wait", "A way for the worker to wait; may be given several times"},
                         {"--iters"},
                         {"--gap"},
                         {"--core", "CPU of the application's threads"},
                         {"--worker-core", "CPU of the worker"},
                         {"--json"}});
}

std::vector<manual::Section> PerfCommandLine::sections() {
    return {{"Exit status",
             {{"0", "It has measured."},
              {"1", "It could not measure: the device, the connection or the peer failed, or a byte was wrong."},
              {"2", "The command line is wrong, or the device cannot do what it asks for."}}}};
}

CommandLine parse_command_line(int argc, const char* const* argv) {
    PerfCommandLine line;
    try {
        line.app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return {std::nullopt, std::nullopt, line.app.exit(error) == 0 ? kExitOk : kExitUsage};
    }
    if (line.of_wake->parsed()) {
        return {std::nullopt, std::move(line.wake), kExitOk};
    }
    return {std::move(line.lat), std::nullopt, kExitOk};
}

}  // namespace pollcore::perf
