#include "start_report.hpp"

#include <string_view>

#include <fmt/format.h>

#include "base/log.hpp"

namespace pollcore::daemon {
namespace {

std::string_view poll_text(PollVerbs poll) noexcept {
    switch (poll) {
        case PollVerbs::automatic: return "auto";
        case PollVerbs::extended: return "extended";
        case PollVerbs::plain: return "plain";
    }
    return "unknown";
}

std::string_view windows_text(const DeviceReport& device) noexcept {
    if (device.memory_windows_1 && device.memory_windows_2) {
        return "memory windows of type 1 and 2";
    }
    return device.memory_windows_1   ? "memory windows of type 1 only"
           : device.memory_windows_2 ? "memory windows of type 2 only"
                                     : "no memory windows";
}

std::string count(std::size_t n, std::string_view noun) {
    return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s");
}

std::string processes(std::uint64_t n) {
    return fmt::format("{} process{}", n, n == 1 ? "" : "es");
}

}  // namespace

void log_runtime(const Runtime& runtime, const std::string& service_cpus) {
    const RuntimeReport report = runtime.report();
    for (const DeviceReport& device : report.devices) {
        log_info(
            "device {}: {}; up to {} inline bytes, {} work requests per queue, {} CQ entries, {} SGEs; {}, {}, {}, {}",
            device.name, device.description, device.inline_max, device.qp_depth_max, device.cqes_max, device.sges_max,
            device.extended_cqs ? "extended CQs" : "plain CQs only", windows_text(device),
            device.invalidation ? "invalidation" : "no invalidation",
            device.completion_timestamp_mask != 0 ? "time stamps" : "no time stamps");
    }
    log_info("memory: {}", report.memory);
    log_info("EAL: {}", report.eal);
    const std::vector<WorkerConfig>& workers = runtime.config().workers;
    for (std::size_t i = 0; i < workers.size(); ++i) {
        log_info("worker {}: core {}, idle {}, poll {}, thread {}", workers[i].name, workers[i].core,
                 workers[i].idle.describe(), poll_text(workers[i].poll), runtime.worker_thread_id(i));
    }
    log_info("services and control: CPUs {}", service_cpus);
}

void log_services(const std::vector<std::unique_ptr<Service>>& services) {
    for (const auto& service : services) {
        log_info("service {}: listens on {}; {}", service->name(), service->address(), service->describe());
    }
}

void log_attached(const AttachCounts& counts) {
    log_info(
        "attached since the start: {}; {} detached, {} died or hung up, {} were ended for corrupting their rings, {} "
        "by "
        "an operator; {} refused. The longest clean-up took {:.1f} ms",
        processes(counts.attached), counts.detached, counts.died, counts.evicted, counts.disconnected, counts.refused,
        static_cast<double>(counts.longest_clean_up.count()) / 1000);
}

std::string status_line(const std::vector<std::unique_ptr<Service>>& services, const AttachServer* attach,
                        bool draining) {
    std::size_t connections = 0;
    for (const auto& service : services) {
        connections += service->connections();
    }
    std::string line = fmt::format("{}, {}", count(services.size(), "service"), count(connections, "connection"));
    if (attach != nullptr) {
        const AttachCounts counts = attach->counts();
        line += fmt::format(", {} attached", processes(counts.now));
        if (counts.evicted != 0 || counts.refused != 0) {
            line += fmt::format(" ({} ended for corrupting their rings, {} refused)", counts.evicted, counts.refused);
        }
    }
    if (draining) {
        line += ", draining";
    }
    return line;
}

}  // namespace pollcore::daemon
