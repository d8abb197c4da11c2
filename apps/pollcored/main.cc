// pollcored: pollcore's polling cores as a daemon. See --help and config/pollcored.toml.
#include <cstdio>

#include <fmt/core.h>

#include "base/log.hpp"
#include "daemon.hpp"
#include "exit_code.hpp"
#include "options.hpp"
#include "signals.hpp"

namespace {

using namespace pollcore;
using namespace pollcore::daemon;

int run(const Options& options) {
    Config config;
    try {
        config = load_config(options.config_file);
    } catch (const ConfigError& error) {
        // As it is, without the log's prefix: it begins with file and line, which editors and people look
        // for.
        fmt::print(stderr, "{}\n", error.what());
        return options.action == Options::Action::check ? kExitFailed : kExitUsage;
    }
    if (options.log_level) {
        config.log_level = *options.log_level;
    }
    switch (options.action) {
        case Options::Action::check:
            fmt::print("{}: accepted\n", options.config_file.native());
            return kExitOk;
        case Options::Action::print: fmt::print("{}", print_config(config)); return kExitOk;
        case Options::Action::run: break;
    }
    set_log_level(config.log_level);
    log_info("pollcored {} with {}", POLLCORE_VERSION, options.config_file.native());
    return Daemon(config).run();
}

}  // namespace

int main(int argc, char** argv) {
    const ParsedOptions parsed = parse_options(argc, argv);
    if (!parsed.options) {
        return parsed.exit_code;
    }
    try {
        // Before the runtime's threads exist, which inherit the mask.
        block_signals();
        return run(*parsed.options);
    } catch (const std::exception& error) {
        log_error("{}", error.what());
        return kExitFailed;
    }
}
