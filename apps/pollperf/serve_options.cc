// The options of a server: `pollperf serve`, or another command without an address.
#include <algorithm>
#include <cstddef>

#include "options.hpp"

namespace pollcore::perf {

bool is_server(const TestArguments& arguments) {
    if (arguments.serve) {
        return true;
    }
    const bool software = arguments.device.starts_with(kSoftwarePrefix);
    return arguments.address.empty() && !arguments.loopback && !software &&
           (arguments.config.empty() || (!arguments.attach.empty() && arguments.port.has_value()));
}

ServeOptions resolve_server(const TestArguments& arguments) {
    return resolve_server(arguments, config::Cpus::of_this_process());
}

ServeOptions resolve_server(const TestArguments& arguments, const config::Cpus& cpus) {
    ServeOptions options;
    refuse_if(!arguments.address.empty(), "ADDRESS", "a server listens on all addresses");
    refuse_if(arguments.device.starts_with(kSoftwarePrefix) && arguments.attach.empty(), "--device",
              "a software device ends with its process; other processes reach it through a daemon: --attach");
    refuse_if(!arguments.json.empty() || !arguments.csv.empty() || !arguments.hdr.empty() ||
                  !arguments.report.empty() || !arguments.bandwidth_least.empty() || !arguments.rate_least.empty() ||
                  !arguments.p99_most.empty() || !arguments.baseline.empty() || arguments.brief,
              "outputs and limits", "the client has the figures; give them to the client");
    resolve_device(arguments, cpus, options);
    if (!arguments.path.empty()) {
        const auto paths = parse_paths(arguments.path, options.wait == Waiting::sleep || arguments.events);
        refuse_if(paths.size() > 1, "--path", "a server has one path, or without --path that of each client");
        options.path = paths.front();
    } else if (!options.attach.empty()) {
        options.path = PathKind::attached;
    }
    refuse_if(arguments.events && arguments.path.empty(), "--events", "say --path event");
    refuse_if(!options.attach.empty() && options.path != PathKind::attached, "--attach", "it is for --path attached");
    refuse_if(!options.attach.empty() && arguments.config.empty(), "--attach",
              "say what the daemon runs with: --config FILE");
    options.port = parse_port(arguments.port);
    options.clients = in_range<std::uint32_t>("--clients", arguments.clients.value_or(1), 1, 64);
    options.once = arguments.once || !arguments.serve;
    options.client_timeout = parse_time("--client-timeout", arguments.client_timeout);
    const bool plain = options.path && !has_worker(*options.path);
    // A client may ask for a path with a worker, so there has to be a CPU for one, if there are two at all.
    const bool needs_worker = !plain && (cpus.allowed.size() > 1 || options.wait != Waiting::spin);
    resolve_cores(arguments, cpus, Role::server, needs_worker, options.path == PathKind::event,
                  static_cast<std::uint32_t>(std::max<std::size_t>(1, arguments.core.size())),
                  in_range<std::uint32_t>("--workers", arguments.workers.value_or(1), 1, kWorkersMax), options);
    return options;
}

}  // namespace pollcore::perf
