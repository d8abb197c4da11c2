// pollcored: pollcore's polling cores as a daemon. See --help and config/pollcored.toml.
#include <sys/resource.h>

#include <cstdint>
#include <cstdio>
#include <vector>

#include <fmt/core.h>

#include "base/log.hpp"
#include "base/log_writer.hpp"
#include "config/validation.hpp"
#include "control/eal.hpp"
#include "daemon.hpp"
#include "daemon_exit_code.hpp"
#include "daemon_options.hpp"
#include "pollcore/version.hpp"
#include "signals.hpp"

namespace {

using namespace pollcore;
using namespace pollcore::daemon;

Config read(const Options& options) {
    Config config = config::load_and_check_paths(options.config_file);
    if (options.log_level) {
        config.log_level = *options.log_level;
    }
    return config;
}

// Each attached process takes several descriptors. The soft limit is low only for programs that use select(2), and this
// program does not use select(2).
void raise_descriptor_limit() noexcept {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)::setrlimit(RLIMIT_NOFILE, &limit);  // up to the hard limit this is always allowed
    }
}

/// An operator of a daemon wants its statistics.
Config with_statistics(Config config) {
    if (config.statistics.segment == StatisticsConfig::Segment::automatic) {
        config.statistics.segment = StatisticsConfig::Segment::on;
    }
    return config;
}

int serve(const Config& config, const Options& options) {
    std::vector<std::uint32_t> cores;
    for (const WorkerConfig& worker : config.workers) {
        cores.push_back(worker.core);
    }
    // Lives until the last line is logged. With this writer, the daemon can serve and end even if nobody reads stderr.
    const LogWriter log_writer([cpus = helper_cpus(cores)] { become_helper("pollcore-log", cpus); });
    try {
        set_log_level(config.log_level);
        log_info("pollcored {} with {}", POLLCORE_VERSION, options.config_file.native());
        raise_descriptor_limit();
        return Daemon(config, [&options] { return with_statistics(read(options)); }).run();
    } catch (const std::exception& error) {
        log_error("{}", error.what());
        return kExitFailed;
    }
}

int run(const Options& options) {
    Config config;
    try {
        config = read(options);
    } catch (const ConfigError& error) {
        // Without the prefix of log lines: the message begins with file and line, as editors and people expect.
        fmt::print(stderr, "{}\n", error.what());
        return kExitUsage;
    }
    switch (options.action) {
        case Options::Action::check: fmt::print("{}: accepted\n", options.config_file.native()); return kExitOk;
        case Options::Action::print: fmt::print("{}", print_config(config)); return kExitOk;
        case Options::Action::run: break;
    }
    return serve(with_statistics(std::move(config)), options);
}

}  // namespace

int main(int argc, char** argv) {
    const ParsedOptions parsed = parse_options(argc, argv);
    if (!parsed.options) {
        return parsed.exit_code;
    }
    try {
        // The runtime's threads do not exist yet. They inherit the signal mask.
        block_signals();
        return run(*parsed.options);
    } catch (const std::exception& error) {
        log_error("{}", error.what());
        return kExitFailed;
    }
}
