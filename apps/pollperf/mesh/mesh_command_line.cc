#include "pollperf/mesh/mesh_command_line.hpp"

#include <sstream>

#include "pollperf/exit_code.hpp"

namespace pollcore::perf {

MeshCommandLine::MeshCommandLine() {
    auto& help = manual::ShortHelp::add_to(app);
    app.set_version_flag("--version", manual::version_text("pollperf-mesh"),
                         "Print the version and how this was built");
    app.get_formatter()->column_width(34);
    // Where a rank measures.
    app.add_option("-d,--device", arguments.device,
                   "Device of each rank, as ibv_devices(1) prints it; with --config a name of the file's")
        ->type_name("DEVICE");
    app.add_option("--config", arguments.config, "Take device and workers from this file")->type_name("FILE");
    app.add_option("--attach", arguments.attach,
                   "Measure through the pollcored that listens at this socket; --config names what that runs with. The "
                   "software device of a pollcored connects the ranks that are attached to it")
        ->type_name("SOCKET");
    app.add_option(
           "--path", arguments.path,
           "direct: plain verbs. event: plain verbs with a completion channel. runtime: through a worker of each "
           "rank. attached: through a pollcored's worker (direct; with --attach attached)")
        ->type_name("{direct,event,runtime,attached}");
    app.add_option("-x,--gid-index", arguments.gid_index, "Index in the GID table of this rank's device")
        ->type_name("INDEX");
    app.add_option("-I,--inline_size", arguments.inline_size,
                   "Messages up to this size travel in the work request (220, or what the device takes; on a software "
                   "device 16)")
        ->type_name("BYTES");
    app.add_option("--wait", arguments.wait,
                   "How a measuring thread waits (spin; yield if a host has more ranks than CPUs for them)")
        ->type_name("{spin,yield,event}");
    app.add_option("--core", arguments.core,
                   "CPU of the measuring thread; several with commas: one for each rank of a host, in turn (the CPUs "
                   "that MPI has bound the rank to, or all, without those of workers, in turn)")
        ->delimiter(',')
        ->type_name("CPU");
    app.add_option("--timeout", arguments.timeout, "Longest wait for a single message (10s)")->type_name("TIME");
    // What is measured.
    app.add_option("--only", arguments.only,
                   "Measure these parts only: latency, bandwidth, incast, all-to-all, with commas (all)")
        ->type_name("PARTS");
    app.add_option(
           "-o,--op", arguments.op,
           "Operation of bandwidth, incast and all to all: write, read, send or write-imm (write). With read the "
           "data flow against the direction that is shown")
        ->type_name("{write,read,send,write-imm}");
    app.add_option("-s,--size", arguments.size, "Bytes of a message of bandwidth, incast and all to all (64KiB)")
        ->type_name("SIZE");
    app.add_option("--latency-size", arguments.latency_size, "Bytes of a message of the latency (8)")
        ->type_name("SIZE");
    app.add_option("-t,--tx-depth", arguments.tx_depth,
                   "Operations in flight from one rank to another; of incast and all to all as many together, but at "
                   "least 8 (128)")
        ->type_name("COUNT");
    app.add_option(
           "-n,--iters", arguments.iterations,
           "Operations that are timed, of latency and bandwidth, instead of a time; incast and all to all always "
           "have a time")
        ->type_name("COUNT");
    app.add_option("-D,--duration", arguments.duration,
                   "Time of each measurement: seconds, or with a unit such as 500ms (200ms)")
        ->type_name("TIME");
    app.add_option("--incast-to", arguments.incast_to, "Incast to this rank only (to each rank in turn)")
        ->type_name("RANK");
    app.add_flag("--serial", arguments.serial,
                 "One pair at a time; else pairs that have no host in common measure at the same time");
    app.add_option("--outlier", arguments.outlier,
                   "A pair is an outlier if it is worse than the median by more than this, and by more than 3 median "
                   "absolute deviations; the pairs within hosts are judged apart (20%)")
        ->type_name("SHARE");
    // Outputs of rank 0.
    app.add_option("--json", arguments.json, "Write everything that was measured to this file, too")->type_name("FILE");
    app.add_option("--csv", arguments.csv, "Write a line for each pair to this file, too")->type_name("FILE");
    app.add_option("--report", arguments.report, "Write a page for the browser, which needs no network")
        ->type_name("FILE");
    app.footer(manual::footer(sections()));
    help.show(app, {{"--device", "Device as ibv_devices(1) prints it"},
                    {"--config"},
                    {"--attach", "Measure through the pollcored at this socket"},
                    {"--path", "direct, event, runtime, or attached"},
                    {"--only", "Parts of latency,bandwidth,incast,all-to-all"},
                    {"--op", "For bandwidth: write, read, send, write-imm"},
                    {"--size", "Bytes of a message of bandwidth (64KiB)"},
                    {"--latency-size", "Bytes of a message of latency (8)"},
                    {"--iters", "Operations of each pair, instead of a time"},
                    {"--duration", "Time of each measurement (200ms)"},
                    {"--serial", "One pair at a time"},
                    {"--wait", "spin, yield or event"},
                    {"--core", "CPU of each rank of a host, with commas"},
                    {"--outlier", "How much worse an outlier is (20%)"},
                    {"--json", "Write all figures to this file"},
                    {"--csv", "Write a line for each pair to this file"},
                    {"--report", "Write a page for the browser"},
                    {"--version"}});
}

std::vector<manual::Section> MeshCommandLine::sections() {
    return {{"Exit status",
             {{"0", "It has measured all."},
              {"1",
               "It could not measure: a rank, a device or a connection failed. Standard error names the rank and its "
               "host."},
              {"2", "The command line is wrong, or a device cannot do what it asks for."}}},
            {"Examples",
             {{"mpirun -np 4 --map-by node pollperf-mesh -d mlx5_0 --report mesh.html",
               "Plain verbs between four hosts, with a page for the browser."},
              {"srun --mpi=pmix -N 16 pollperf-mesh -d mlx5_0 -x 3 --json mesh.json",
               "Between sixteen hosts of a Slurm cluster."}}}};
}

MeshLine parse_mesh_command_line(int argc, const char* const* argv) {
    MeshCommandLine line;
    MeshLine result;
    try {
        line.app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        std::ostringstream text;
        result.exit_code = line.app.exit(error, text, text) == 0 ? kExitOk : kExitUsage;
        result.text = text.str();
        return result;
    }
    result.arguments = std::move(line.arguments);
    return result;
}

}  // namespace pollcore::perf
