#include "doctor_options.hpp"

#include "checks.hpp"
#include "doctor_command_line.hpp"

namespace pollcore::doctor {
namespace {

// CLI11 prints what a check returns.
std::string refuse_other_archives(const std::string& file) {
    return file.ends_with(".tar.gz") || file.ends_with(".tar.zst") ? "" : file + " must end with .tar.gz or .tar.zst";
}

}  // namespace

DoctorCommandLine::DoctorCommandLine(const std::string& default_config) : config_file(default_config) {
    app.footer(manual::footer(sections()));
    auto& help = manual::ShortHelp::add_to(app);
    app.set_version_flag("--version", manual::version_text("polldoctor"), "Print the version and how this was built");
    config_option =
        app.add_option(
               "-c,--config", config_file,
               "The configuration, in TOML. Without one, each CPU that this process may use is judged, briefly, "
               "and each RDMA device")
            ->type_name("FILE")
            ->capture_default_str();
    app.add_flag("--json", json, "Print JSON instead of a table");
    app.add_flag("--all", all, "Print also what is ok");
    auto* const disturb_flag = app.add_flag(
        "--disturb", disturb,
        "Measure also cores that running workers use. Each of them stands still for half a second or more");
    auto* const bundle_option = app.add_option("--bundle", bundle,
                                               "Also write a new archive for a bug report, which ends with .tar.gz or "
                                               ".tar.zst. Only its owner may read it")
                                    ->type_name("FILE")
                                    ->check(CLI::Validator(&refuse_other_archives, ""));
    app.add_option(
           "--root", root,
           "Judge the copy of another host's /proc and /sys in this directory, such as the directory \"host\" of "
           "a bundle. Nothing is measured")
        ->type_name("FILE")
        ->excludes(disturb_flag)
        ->excludes(bundle_option)
        ->check(CLI::ExistingDirectory.description(""));
    help.show(app, {{"--config", "The configuration; without one, each CPU is judged, briefly"},
                    {"--json"},
                    {"--all"},
                    {"--disturb", "Measure also cores that running workers use"},
                    {"--bundle", "Also write an archive for a bug report (.tar.gz, .tar.zst)"},
                    {"--root", "Judge a copy of another host, such as \"host\" of a bundle"},
                    {"--version"}});
}

std::vector<manual::Section> DoctorCommandLine::sections() {
    std::vector<std::pair<std::string, std::string>> judged;
    for (const Check& check : all_checks()) {
        judged.emplace_back(check.id, std::string(check.judges));
    }
    return {
        {"Exit status",
         {{"0", "All is ok, or worth a note only."},
          {"1", "There is a warning: something costs time or bandwidth."},
          {"2", "The command line or the configuration is wrong."},
          {"3", "There is a fault: the runtime does not start, or does not work."},
          {"4", "The host could not be judged, or the bundle could not be written."}}},
        {"Findings",
         {{"",
           "Each finding has what was seen and where, what it costs, how to mend it, and whether it is a guess. A cost "
           "was measured here, or is stated by the source that it names, or it says that it was not measured. What "
           "cannot be read is a note, and does not count as good. Root can read the most: the PCIe configuration, "
           "files of other users' processes, segments of other users' runtimes."}}},
        {"Measurements",
         {{"",
           "A thread spins for a second on each worker's core, all at one time, while the counters of the kernel and "
           "of "
           "the devices are read twice. Then each pair of cores passes a cache line to and fro. A core that a running "
           "worker uses is measured with --disturb only: the worker's statistics segment, its core lock or its socket "
           "tells that it runs. A runtime of another user that shares its cores (share_cores) tells nobody, unless its "
           "segment may be read."}}},
        {"Checks", std::move(judged)},
        {"Bundle",
         {{"",
           "The archive is a new file, which only its owner may read, and nothing is sent anywhere. It has a "
           "README.txt "
           "and:"},
          {"configuration.toml, effective.toml",
           "The configuration without its comments, and with all defaults. It has names of users, groups and paths."},
          {"findings.json, findings.txt", "What polldoctor prints."},
          {"versions.txt", "The versions of pollcore, libibverbs, DPDK, the kernel and the distribution."},
          {"host/",
           "The files of /proc and /sys that were read, in directories that --root can judge; host/asked has what the "
           "kernel tells by calls, and host/later the second reading. Of the kernel's command line it has the values "
           "of "
           "parameters about CPUs, clocks, memory and PCI only; of others it has the names."},
          {"segments/",
           "Each runtime's statistics and last log lines, also of a runtime that has died. They have names of attached "
           "processes, pids and users."},
          {"journal.txt, dmesg.txt",
           "The last lines of pollcored's journal and of the kernel's log, if they may be read."},
          {"",
           "It has no environment variables, no memory of any process, and no file of a user. Look into it before "
           "you send it to somebody."}}}};
}

ParsedOptions parse_options(int argc, const char* const* argv) {
    DoctorCommandLine line(POLLCORE_CONFIG_FILE);
    try {
        line.app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return {std::nullopt, line.app.exit(error) == 0 ? kExitOk : kExitUsage};
    }
    Options options;
    options.config_file = line.config_file;
    options.config_given = line.config_option->count() != 0;
    options.root = line.root;
    options.json = line.json;
    options.all = line.all;
    options.disturb = line.disturb;
    options.bundle = line.bundle;
    return {std::move(options), kExitOk};
}

}  // namespace pollcore::doctor
