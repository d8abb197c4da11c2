// Writes the manual pages of the programs, and the bash scripts that complete their command lines.
//
//   make-manual DIRECTORY CONFIG-FILE      (CONFIG-FILE: the configuration that pollcored reads by default)
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "manual/manual.hpp"
#include "pollcore-run/run_command_line.hpp"
#include "pollcored/daemon_command_line.hpp"
#include "pollctl/ctl_command_line.hpp"
#include "polldoctor/doctor_command_line.hpp"
#include "pollperf/mesh/mesh_command_line.hpp"
#include "pollperf/perf_command_line.hpp"
#include "pollstat/stat_command_line.hpp"

namespace {

using namespace pollcore;

bool write(const std::filesystem::path& file, const std::string& text) {
    std::ofstream out(file);
    out << text;
    out.close();
    if (!out) {
        std::fprintf(stderr, "make-manual: cannot write %s\n", file.c_str());
    }
    return static_cast<bool>(out);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: make-manual DIRECTORY CONFIG-FILE\n");
        return 2;
    }
    const std::filesystem::path directory = argv[1];
    const daemon::DaemonCommandLine of_daemon(argv[2]);
    const perf::PerfCommandLine of_perf;
    const perf::MeshCommandLine of_mesh;
    const stat::StatCommandLine of_stat;
    const ctl::CtlCommandLine of_ctl;
    const doctor::DoctorCommandLine of_doctor(argv[2]);
    const run::RunCommandLine of_run;

    std::vector<manual::Section> daemon_sections = daemon::DaemonCommandLine::sections();
    daemon_sections.push_back(
        {"Files",
         {{argv[2], "The configuration. Its comments say what each key means, and what it accepts."},
          {"/run/pollcore/pollcored.sock", "Where processes attach, by the configuration that is installed."},
          {"/run/pollcore/control.sock", "Where pollctl connects, by the configuration that is installed."}}});
    const std::vector<manual::Section> perf_sections = perf::PerfCommandLine::sections();
    const manual::Page pages[] = {
        {&of_daemon.app,
         "pollcored",
         "share RDMA devices among processes",
         daemon_sections,
         {"pollctl(1)", "polldoctor(1)", "pollperf(1)", "pollstat(1)", "systemctl(1)", "rdma(8)", "ibv_devices(1)"}},
        {&of_perf.app,
         "pollperf",
         "measure RDMA operations",
         perf_sections,
         {"pollperf-bw(1)", "pollperf-lat(1)", "pollperf-rate(1)", "pollperf-report(1)", "pollperf-serve(1)",
          "pollperf-wake(1)", "pollcored(1)", "ib_send_lat(1)"}},
        {of_perf.of_lat,
         "pollperf-lat",
         "measure the latency of RDMA operations",
         perf_sections,
         {"pollperf(1)", "pollperf-serve(1)", "pollcored(1)", "ibv_devices(1)", "ib_send_lat(1)"}},
        {of_perf.of_bw,
         "pollperf-bw",
         "measure the bandwidth of RDMA operations",
         perf_sections,
         {"pollperf(1)", "pollperf-serve(1)", "pollcored(1)", "ibv_devices(1)", "ib_send_bw(1)"}},
        {of_perf.of_rate,
         "pollperf-rate",
         "measure RDMA operations per second",
         perf_sections,
         {"pollperf(1)", "pollperf-serve(1)", "pollcored(1)", "ibv_devices(1)", "ib_send_bw(1)"}},
        {of_perf.of_serve,
         "pollperf-serve",
         "be the other end of RDMA measurements",
         perf::PerfCommandLine::serve_sections(),
         {"pollperf(1)", "pollperf-lat(1)", "pollperf-bw(1)", "pollperf-rate(1)"}},
        {of_perf.of_report,
         "pollperf-report",
         "make a page of measured results",
         perf::PerfCommandLine::report_sections(),
         {"pollperf(1)", "pollperf-lat(1)"}},
        {of_perf.of_wake,
         "pollperf-wake",
         "measure what each way to wait costs",
         perf_sections,
         {"pollperf(1)", "pollcored(1)"}},
        {&of_mesh.app,
         "pollperf-mesh",
         "measure RDMA between all ranks of an MPI job",
         perf::MeshCommandLine::sections(),
         {"pollperf(1)", "pollcored(1)", "mpirun(1)", "srun(1)", "ibv_devices(1)"}},
        {&of_stat.app,
         "pollstat",
         "show what runtimes of pollcore do",
         stat::StatCommandLine::sections(),
         {"pollcored(1)", "pollctl(1)", "polldoctor(1)", "pollperf(1)"}},
        {.command = &of_ctl.app,
         .name = "pollctl",
         .summary = "give a running pollcored commands",
         .sections = ctl::CtlCommandLine::sections(),
         .see_also = {"pollcored(1)", "pollstat(1)", "systemctl(1)"},
         .has_subcommands = true},
        {&of_doctor.app,
         "polldoctor",
         "judge a host for pollcore",
         doctor::DoctorCommandLine::sections(),
         {"pollcored(1)", "pollstat(1)", "pollperf(1)", "rdma(8)", "setpci(8)"}},
        {&of_run.app,
         "pollcore-run",
         "run a verbs program over pollcored",
         run::RunCommandLine::sections(),
         {"pollcored(1)", "pollctl(1)", "pollperf(1)", "ibv_devices(1)", "ld.so(8)"}},
    };
    bool written = true;
    for (const manual::Page& page : pages) {
        written &= write(directory / (page.name + ".1"), manual::manual_page(page));
    }
    for (const CLI::App* program :
         {&of_daemon.app, &of_perf.app, &of_mesh.app, &of_stat.app, &of_ctl.app, &of_doctor.app, &of_run.app}) {
        written &= write(directory / program->get_name(), manual::bash_completion(*program));
    }
    return written ? 0 : 1;
}
