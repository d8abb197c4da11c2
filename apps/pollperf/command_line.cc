#include "command_line.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "exit_code.hpp"
#include "pollcore/version.hpp"
#include "workload.hpp"

namespace pollcore::perf {
namespace {

template <class Arguments>
void add_common_options(CLI::App& command, Arguments& arguments) {
    command.add_option("--core", arguments.core, "CPU of the application's threads (one that is no worker's)");
    command.add_option("--worker-core", arguments.worker_core, "CPU of the worker (another one)");
    command.add_flag("--share-core", arguments.share_core,
                     "Let the worker run on a core that other runtimes may poll on, too");
    command.add_option("--json", arguments.json, "Write everything that was measured to this file, too");
}

void add_options(CLI::App& command, LatArguments& arguments) {
    command.add_option("ADDRESS", arguments.address, "Server to connect to; without it this is the server. Numeric");
    command.add_option("-o,--op", arguments.op,
                       "send, write, read, fetch-add, several with commas, or all (send; with --config all)");
    command.add_option(
        "--path", arguments.path,
        "direct: plain verbs on the calling thread; event: the same with a completion channel; runtime: through a "
        "worker; attached: the same as a process that attaches to the worker's has it; in one process also both, "
        "direct and "
        "runtime, and all, attached too (both where possible, else direct; with --attach attached)");
    command.add_option(
        "-d,--device", arguments.device,
        "Device as ibv_devices(1) prints it; 'soft...' is a software device; with --config a name of the "
        "file's");
    command.add_option("--config", arguments.config,
                       "Take device and workers from this file; both ends in one process");
    command.add_option("--attach", arguments.attach,
                       "Path attached goes through the pollcored that listens at this socket, and --config is what "
                       "that runs with. With "
                       "ADDRESS this is a client, with --port a server, else both ends are in this process");
    command.add_flag("--loopback", arguments.loopback, "Both ends in one process, on a verbs device");
    command.add_option("-p,--port", arguments.port, "Port of the server (18515)");
    command.add_option("-s,--size", arguments.size, "Bytes of a message (2; fetch-add 8)");
    command.add_option("-n,--iters", arguments.iterations,
                       "Iterations that are timed (1000; on a software device 200000, with one CPU 20000)");
    command.add_option("--warmup", arguments.warmup, "Iterations before them (a tenth, at least 100)");
    command.add_option("--rounds", arguments.rounds, "Rounds of the iterations, in which paths take turns (10)");
    command.add_option("-x,--gid-index", arguments.gid_index, "Index in the GID table, for both ends in one process");
    command.add_option("-I,--inline_size", arguments.inline_size,
                       "Messages up to this size travel in the work request (220, or what the device takes; on a "
                       "software device 16)");
    add_common_options(command, arguments);
    command.add_option(
        "--wait", arguments.wait,
        "How the application's thread waits, and on path runtime the worker too: spin, yield or event; the worker "
        "also pause or monitor (spin; with one CPU yield)");
    command.add_option(
        "--idle", arguments.idle,
        "How the worker waits, if not as --wait has it: one of those, or as a configuration's idle, such as "
        "'[{spin = \"20us\"}, \"event\"]'");
    command.add_option(
        "--flow", arguments.flow,
        fmt::format("Flow control of path runtime: {} (off). Between processes both have the same", flow_names()));
    command.add_flag("--verify", arguments.verify, "Check every byte that arrives");
    command.add_flag("--brief", arguments.brief, "Print one short table that needs no glossary, and what it means");
    command.add_option("--timeout", arguments.timeout, "Longest wait for a single message (10s)");
    command.add_option("--client-timeout", arguments.client_timeout, "How long a server waits for its client (60s)");
    // perftest's, for command lines that have them.
    command.add_flag("-F,--CPU-freq", arguments.cpu_freq, "Accepted: CPU frequencies are never warned about");
    command.add_flag("-R,--rdma_cm", arguments.rdma_cm, "Accepted: connections are always made by rdma_cm");
}

void add_options(CLI::App& command, WakeArguments& arguments) {
    command.add_option("-d,--device", arguments.device,
                       "Device as ibv_devices(1) prints it; 'soft...' is a software device (soft0)");
    command.add_option(
        "--wait", arguments.wait,
        "A way for the worker to wait, as in a configuration: event, or '[{spin = \"20us\"}, \"event\"]'. May be "
        "given several times (spin, pause, yield, a ladder up to event, event)");
    command.add_option("-n,--iters", arguments.iterations, "Operations that are timed, of each kind (1000)");
    command.add_option("--gap", arguments.gap, "Time between two operations (1ms)");
    add_common_options(command, arguments);
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
    CLI::App app("Measures RDMA operations: plain verbs, and through pollcore's workers", "pollperf");
    app.set_version_flag("--version", "pollperf " POLLCORE_VERSION);
    app.require_subcommand(1);
    app.get_formatter()->column_width(34);
    LatArguments lat;
    add_options(*app.add_subcommand("lat", "Latency of single operations: to and fro, one at a time"), lat);
    WakeArguments wake;
    CLI::App& of_wake = *app.add_subcommand(
        "wake", "What each way to wait costs: how long waking up takes, and how much CPU waiting does");
    add_options(of_wake, wake);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return {std::nullopt, std::nullopt, app.exit(error) == 0 ? kExitOk : kExitUsage};
    }
    if (of_wake.parsed()) {
        return {std::nullopt, std::move(wake), kExitOk};
    }
    return {std::move(lat), std::nullopt, kExitOk};
}

}  // namespace pollcore::perf
