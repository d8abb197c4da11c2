#include "command_line.hpp"

#include <fmt/format.h>

#include "exit_code.hpp"
#include "perf_command_line.hpp"
#include "pollperf/measure/workload.hpp"

namespace pollcore::perf {
namespace {

// ---- where to measure: lat, bw, rate and serve ----

void add_place_options(CLI::App& command, TestArguments& arguments, bool serves) {
    command
        .add_option("-d,--device", arguments.device,
                    "Device as ibv_devices(1) prints it; 'soft...' is a software device; with --config a name of the "
                    "file's")
        ->type_name("DEVICE");
    command
        .add_option("--config", arguments.config,
                    serves ? "Take device and workers from this file"
                           : "Take device and workers from this file; without ADDRESS both ends are in this process")
        ->type_name("FILE");
    command
        .add_option("--attach", arguments.attach,
                    serves
                        ? "Path attached goes through the pollcored that listens at this socket; --config names what "
                          "that runs with"
                        : "Path attached goes through the pollcored that listens at this socket; --config names what "
                          "that runs with. Without ADDRESS, --port makes this a server; else both ends are in this "
                          "process")
        ->type_name("SOCKET");
    command.add_option("-p,--port", arguments.port, "TCP port of the server (18515)")->type_name("PORT");
    command
        .add_option(
            "-x,--gid-index", arguments.gid_index,
            "Index in the GID table of this end, for connections without rdma_cm (the GID of the address by which "
            "the two reach each other, else the first of RoCE v2)")
        ->type_name("INDEX");
    command
        .add_option("-I,--inline_size", arguments.inline_size,
                    "Messages up to this size travel in the work request (220, or what the device takes; on a "
                    "software device 16)")
        ->type_name("BYTES");
    command
        .add_option("--core", arguments.core,
                    "CPU of the application's thread (one that is no worker's), or one for each thread")
        ->delimiter(',')
        ->type_name("CPU");
    command
        .add_option("--worker-core", arguments.worker_core, "CPU of the worker (another one), or one for each worker")
        ->delimiter(',')
        ->type_name("CPU");
    command.add_option("--workers", arguments.workers, "Workers that the sessions are dealt out to (1)")
        ->type_name("COUNT");
    command.add_flag("--share-core", arguments.share_core,
                     "Let the worker run on a core that other runtimes may poll on, too");
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
    command.add_option("--timeout", arguments.timeout, "Longest wait for a single message (10s)")->type_name("TIME");
    command
        .add_option("--client-timeout", arguments.client_timeout,
                    "How long a server for one client waits for it to come (60s)")
        ->type_name("TIME");
    command.add_option("--clients", arguments.clients, "Clients that a server serves at the same time (1)")
        ->type_name("COUNT");
    command.add_flag("--once", arguments.once, "A server ends after its first client");
}

void add_path_option(CLI::App& command, TestArguments& arguments, const char* usual) {
    command
        .add_option(
            "--path", arguments.path,
            fmt::format("direct: plain verbs on the calling thread. event: plain verbs; the thread sleeps on a "
                        "completion channel. runtime: through a worker of this process. attached: through rings "
                        "in shared memory, to a worker of this process, or with --attach to one of a pollcored. "
                        "Several with commas; both: direct and runtime; all: attached, too ({})",
                        usual))
        ->type_name("{direct,event,runtime,attached,both,all}");
}

// ---- what to measure: lat, bw and rate ----

void add_test_options(CLI::App& command, TestArguments& arguments, Test test) {
    arguments.test = test;
    const bool lat = test == Test::lat;
    command.add_option(
        "ADDRESS", arguments.address,
        "Server to connect to, numeric. Without it both ends are in this process on a software device, with "
        "--loopback or with --config; else this is a server for one client");
    command
        .add_option("-o,--op", arguments.op,
                    "send, write, write-imm, read, fetch-add, cmp-swap, several with commas, or all (send; with "
                    "--config all)")
        ->type_name("OPERATIONS");
    add_path_option(command, arguments, "in one process both where possible; else direct; with --attach attached");
    command.add_option("-c,--connection", arguments.transport, "Transport: RC, UC or UD (RC)")->type_name("{RC,UC,UD}");
    command
        .add_option("-s,--size", arguments.size,
                    test == Test::bw ? "Bytes of a message, or with a unit such as 4KiB; several with commas (64KiB)"
                                     : "Bytes of a message, or with a unit such as 4KiB; several with commas (2; "
                                       "atomics 8)")
        ->delimiter(',')
        ->type_name("SIZES");
    command.add_flag("-a,--all", arguments.all_sizes, "Sizes from 2 bytes to 8 MiB, each twice the last");
    command
        .add_option("-n,--iters", arguments.iterations,
                    lat ? "Iterations that are timed (1000; on a software device 200000, with one CPU 20000)"
                    : test == Test::bw
                        ? "Operations that are timed (5000; on a software device 200000; of long messages "
                          "fewer)"
                        : "Operations that are timed (100000; on a software device 1000000)")
        ->type_name("COUNT");
    command
        .add_option("-D,--duration", arguments.duration,
                    "Time of each measurement instead: seconds, or with a unit such as 500ms")
        ->type_name("TIME");
    command.add_option("--warmup", arguments.warmup, "Operations before them, not timed (a tenth)")->type_name("COUNT");
    command
        .add_option("--rounds", arguments.rounds,
                    lat ? "Rounds of the iterations, in which paths take turns (10)"
                        : "Rounds of the operations, in which paths take turns (7)")
        ->type_name("COUNT");
    command.add_option("-q,--qp", arguments.queue_pairs, "Queue pairs, dealt out to the threads (one for each thread)")
        ->type_name("COUNT");
    command.add_option("--threads", arguments.threads, "Threads that measure, each with its own CPU (1)")
        ->type_name("COUNT");
    command.add_option("--sessions", arguments.sessions, "Sessions, dealt out to the threads (one for each thread)")
        ->type_name("COUNT");
    command
        .add_option("-t,--tx-depth", arguments.tx_depth,
                    lat ? "Operations in flight on each queue pair, in an open loop (64)"
                        : "Operations in flight on each queue pair (128)")
        ->type_name("COUNT");
    command
        .add_option("-r,--rx-depth", arguments.rx_depth,
                    lat ? "Receives posted on each queue pair (64)" : "Receives posted on each queue pair (512)")
        ->type_name("COUNT");
    command
        .add_option("-l,--post_list", arguments.post_list,
                    test == Test::rate ? "Operations posted by one call (16)" : "Operations posted by one call (1)")
        ->type_name("COUNT");
    command
        .add_option("-Q,--cq-mod", arguments.signal_every,
                    "Every so many operations have a completion (16; of long ones each)")
        ->type_name("COUNT");
    command.add_flag("-b,--bidirectional", arguments.bidirectional, "Both ends send");
    command.add_option("-m,--mtu", arguments.mtu, "Path MTU, without rdma_cm (the port's)")->type_name("BYTES");
    command
        .add_option("--rate", arguments.rate,
                    "Open loop: so many operations are due each second, such as 100k. A latency counts from the time "
                    "at which the operation was due")
        ->type_name("RATE");
    command.add_flag("--poisson", arguments.poisson, "In an open loop: due at random times (a Poisson process)");
    command
        .add_option("--flow", arguments.flow,
                    fmt::format("Flow control of paths runtime and attached: {} (off)", flow_names()))
        ->type_name("{" + flow_names(",") + "}");
    command.add_flag("--verify", arguments.verify, "Check the bytes that arrive");
    command.add_flag("--loopback", arguments.loopback, "Both ends in one process, on a verbs device");
    command.add_flag("-e,--events", arguments.events, "Plain verbs sleep on a completion channel: path event");
    command.add_flag("-R,--rdma_cm", arguments.rdma_cm, "Connect by rdma_cm; else information is exchanged over TCP");
    command.add_flag("--service", arguments.service,
                     "ADDRESS is an echo or memory service of a pollcored, or another program that echoes; by rdma_cm");
    if (lat) {
        command.add_flag("--brief", arguments.brief, "Print one short table that needs no glossary, and what it means");
    }
    command.add_flag("--report_gbits", arguments.report_gbits, "The table has Gb/s, not MiB/s");
    // Outputs.
    command.add_option("--json", arguments.json, "Write everything that was measured to this file, too")
        ->type_name("FILE");
    command.add_option("--csv", arguments.csv, "Write a line for each measurement to this file, too")
        ->type_name("FILE");
    command
        .add_option("--hdr", arguments.hdr,
                    "Write the latencies as HdrHistogram's percentile text; of several measurements, a file for each")
        ->type_name("FILE");
    command.add_option("--report", arguments.report, "Write a page for the browser, which needs no network")
        ->type_name("FILE");
    // Limits, for a check.
    command.add_option("--min-bw", arguments.bandwidth_least, "Least bytes a second, such as 10GiB; or bits, as 90Gb")
        ->type_name("BANDWIDTH");
    command.add_option("--min-rate", arguments.rate_least, "Least operations a second, such as 5M")->type_name("RATE");
    command.add_option("--max-p99", arguments.p99_most, "Longest latency of 99%, such as 10us")->type_name("TIME");
    command.add_option("--baseline", arguments.baseline, "Earlier result (--json) that this one must reach")
        ->type_name("FILE");
    command.add_option("--tolerance", arguments.tolerance, "How much worse than the baseline it may be (5%)")
        ->type_name("SHARE");
    add_place_options(command, arguments, false);
    command.add_flag("-F,--CPU-freq", arguments.cpu_freq, "Accepted: CPU frequencies are judged after the measurement");
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
    command.add_option("--core", arguments.core, "CPU of the application's threads (one that is no worker's)")
        ->type_name("CPU");
    command.add_option("--worker-core", arguments.worker_core, "CPU of the worker (another one)")->type_name("CPU");
    command.add_flag("--share-core", arguments.share_core,
                     "Let the worker run on a core that other runtimes may poll on, too");
    command.add_option("--json", arguments.json, "Write everything that was measured to this file, too")
        ->type_name("FILE");
}

void add_options(CLI::App& command, ReportArguments& arguments) {
    command.add_option("FILE", arguments.files, "Results: files that --json has written")->required();
    command.add_option("-o,--output", arguments.output, "The page")->type_name("FILE")->required();
    command.add_option("--title", arguments.title, "Title of the page")->type_name("TEXT");
}

}  // namespace

PerfCommandLine::PerfCommandLine() {
    auto& help = manual::ShortHelp::add_to(app);
    app.set_version_flag("--version", manual::version_text("pollperf"), "Print the version and how this was built");
    app.require_subcommand(1);
    app.get_formatter()->column_width(34);
    of_lat = app.add_subcommand("lat", "Latency of single operations: to and fro, one at a time");
    of_bw = app.add_subcommand("bw", "Bandwidth: many operations in flight");
    of_rate = app.add_subcommand("rate", "Operations per second: small ones, posted in lists");
    of_serve =
        app.add_subcommand("serve", "The other end for lat, bw and rate: serves clients until it is told to stop");
    of_wake = app.add_subcommand(
        "wake", "What each way to wait costs: how long waking up takes, and how much CPU waiting does");
    of_report = app.add_subcommand("report", "Makes one page for the browser of one or several results");
    for (CLI::App* each : {&app, of_lat, of_bw, of_rate, of_wake}) {
        each->footer(manual::footer(sections()));
    }
    of_serve->footer(manual::footer(serve_sections()));
    of_report->footer(manual::footer(report_sections()));
    add_test_options(*of_lat, lat, Test::lat);
    add_test_options(*of_bw, bw, Test::bw);
    add_test_options(*of_rate, rate, Test::rate);
    serve.serve = true;
    add_path_option(*of_serve, serve, "as the client's");
    add_place_options(*of_serve, serve, true);
    add_options(*of_wake, wake);
    add_options(*of_report, report);
    help.show(app, {{"--version"}});
    const auto show_test = [&](CLI::App& command) {
        help.show(command, {{"ADDRESS", "Server to connect to; without it this is the server"},
                            {"--op", "send, write, write-imm, read, or all (send)"},
                            {"--path", "direct, event, runtime, attached, both, all"},
                            {"--device", "Device as ibv_devices(1) prints it, or soft0"},
                            {"--config", "Take device and workers from this file"},
                            {"--attach", "Attach to the pollcored that listens here"},
                            {"--port"},
                            {"--size", "Bytes, or as 4KiB; several with commas"},
                            {"--all"},
                            {"--iters", "Operations that are timed"},
                            {"--duration", "Time of each measurement instead"},
                            {"--rate", "Open loop: operations due each second"},
                            {"--qp", "Queue pairs (1)"},
                            {"--wait", "spin, yield, event, pause, monitor"},
                            {"--core", "CPU of the application's thread"},
                            {"--json", "Write all that was measured to it"},
                            {"--report", "Write a page for the browser"},
                            {"--baseline", "Earlier result to compare with"}});
    };
    show_test(*of_lat);
    show_test(*of_bw);
    show_test(*of_rate);
    help.show(*of_serve, {{"--path", "This end: direct, event, runtime, attached (as the client's)"},
                          {"--device", "Device as ibv_devices(1) prints it"},
                          {"--config", "Take device and workers from this file"},
                          {"--attach", "Attach to the pollcored that listens here"},
                          {"--port"},
                          {"--core", "CPU of the application's thread"},
                          {"--clients"},
                          {"--once"}});
    help.show(*of_wake, {{"--device"},
                         {"--wait", "A way for the worker to wait; may be given several times"},
                         {"--iters"},
                         {"--gap"},
                         {"--core", "CPU of the application's threads"},
                         {"--worker-core", "CPU of the worker"},
                         {"--json"}});
    help.show(*of_report, {{"FILE"}, {"--output"}, {"--title"}});
}

std::vector<manual::Section> PerfCommandLine::sections() {
    return {{"Exit status",
             {{"0", "It has measured, and reached what was demanded."},
              {"1", "It could not measure: the device, the connection or the peer failed, or a byte was wrong."},
              {"2", "The command line is wrong, or the device cannot do what it asks for."},
              {"3", "It has measured, and missed a limit or the baseline; standard error says by how much."}}}};
}

std::vector<manual::Section> PerfCommandLine::serve_sections() {
    return {
        {"Exit status",
         {{"0", "It was told to stop; or with --once, its client has measured."},
          {"1",
           "It could not serve: the port or the device; or with --once, no client came, or the measurement failed."},
          {"2", "The command line is wrong."}}}};
}

std::vector<manual::Section> PerfCommandLine::report_sections() {
    return {{"Exit status",
             {{"0", "The page is there."},
              {"1", "The page could not be written."},
              {"2", "The command line is wrong, or a file is no result of pollperf."}}}};
}

CommandLine parse_command_line(int argc, const char* const* argv) {
    PerfCommandLine line;
    CommandLine result;
    try {
        line.app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        result.exit_code = line.app.exit(error) == 0 ? kExitOk : kExitUsage;
        return result;
    }
    if (line.of_wake->parsed()) {
        result.wake = std::move(line.wake);
    } else if (line.of_report->parsed()) {
        result.report = std::move(line.report);
    } else {
        result.test = std::move(line.of_lat->parsed()    ? line.lat
                                : line.of_bw->parsed()   ? line.bw
                                : line.of_rate->parsed() ? line.rate
                                                         : line.serve);
    }
    return result;
}

}  // namespace pollcore::perf
