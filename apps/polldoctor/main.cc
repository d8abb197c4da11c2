// polldoctor: judges this host for the workers and devices of a configuration. See --help-all.
#include <cerrno>
#include <cstdio>
#include <exception>

#include <fmt/format.h>

#include "bundle.hpp"
#include "checks.hpp"
#include "doctor_options.hpp"
#include "facts.hpp"
#include "findings_json.hpp"
#include "findings_text.hpp"
#include "host_sample.hpp"
#include "pollcore/error.hpp"
#include "tree.hpp"
#include "wanted_config.hpp"

namespace pollcore::doctor {
namespace {

int exit_code_of(Severity severity) {
    switch (severity) {
        case Severity::ok:
        case Severity::note: return kExitOk;
        case Severity::warning: return kExitWarnings;
        case Severity::fault: return kExitFaults;
    }
    return kExitFailed;
}

int run(const Options& options) {
    Tree now(options.root);
    Tree later(now.is_this_host() ? now.root() : now.root() / kLaterDirectory);
    if (!now.is_this_host() && std::filesystem::is_symlink(later.root())) {
        throw Error(EINVAL,
                    fmt::format("{} is a symbolic link, which may lead out of the copy", later.root().string()));
    }
    const WantedConfig wanted = wanted_config(options.config_file, options.config_given, now);
    const Config* const config = wanted.config ? &*wanted.config : nullptr;
    if (now.is_this_host()) {
        sample_host(now, later, config, {.disturb = options.disturb});
    } else if (!now.read("/proc/cmdline").ok() && !now.read("/proc/cpuinfo").ok()) {
        throw Error(ENOENT, fmt::format("{} is no copy of a host: it has neither proc/cmdline nor proc/cpuinfo",
                                        options.root.string()));
    }
    const Facts facts(now, &later, config, options.config_file.string(), wanted.refused);
    const std::vector<Finding> findings = judge(facts);
    const std::string json = findings_json(facts, findings);
    fmt::print("{}", options.json ? json : findings_text(facts, findings, options.all));
    if (std::fflush(stdout) != 0) {
        throw Error(errno, "writing the findings");
    }
    if (!options.bundle.empty()) {
        write_bundle(options.bundle, facts, later, {.json = json, .text = findings_text(facts, findings, true)});
        fmt::print(stderr, "polldoctor: wrote {}; look into it before you send it to somebody\n",
                   options.bundle.string());
    }
    return exit_code_of(worst_of(findings));
}

}  // namespace
}  // namespace pollcore::doctor

int main(int argc, char** argv) {
    using namespace pollcore::doctor;
    const ParsedOptions parsed = parse_options(argc, argv);
    if (!parsed.options) {
        return parsed.exit_code;
    }
    try {
        return run(*parsed.options);
    } catch (const pollcore::ConfigError& error) {
        // Without a prefix: the message begins with file and line, as editors and people expect.
        fmt::print(stderr, "{}\n", error.what());
        return kExitUsage;
    } catch (const std::exception& error) {
        fmt::print(stderr, "polldoctor: {}\n", error.what());
        return kExitFailed;
    }
}
