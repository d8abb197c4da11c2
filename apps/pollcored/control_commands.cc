#include "control_commands.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/printable.hpp"
#include "common/control_wire.hpp"
#include "manual/manual.hpp"
#include "pollcore/error.hpp"
#include "pollcore/version.hpp"
#include "pollstat/harmless.hpp"

namespace pollcore::daemon {
namespace {

using What = ControlCommand::What;

bool is_of_main_thread(What what) noexcept {
    return what == What::drain || what == What::resume || what == What::stop || what == What::reload;
}

std::optional<std::uint32_t> as_number(const std::string& text) noexcept {
    std::uint32_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

std::string called(const ListedQueuePair& qp) {
    const std::string owner = qp.process == 0 ? "of this process" : fmt::format("of client {}", qp.process);
    return qp.name.view().empty() ? fmt::format("queue pair {} {}", qp.qp_num, owner)
                                  : fmt::format("queue pair {} {} {}", qp.qp_num, printable(qp.name.view()), owner);
}

template <class Thing>
std::vector<Thing> of_process(std::vector<Thing> all, std::uint32_t process) {
    std::erase_if(all, [&](const Thing& each) { return each.process != process; });
    return all;
}

}  // namespace

ControlCommands::ControlCommands(RuntimeState& runtime, AttachServer* attach, Ways ways)
    : runtime_(runtime), attach_(attach), ways_(std::move(ways)) {}

std::chrono::milliseconds ControlCommands::carry_out(const ControlCommand& command, const ControlCaller& caller,
                                                     const std::shared_ptr<ControlAnswer>& answer) {
    const std::string who = "control: " + caller.text();
    switch (command.what) {
        case What::status: answer->done(status()); break;
        case What::list: list(command.kind, answer); break;
        case What::show_process:
            post(answer, [this, process = command.process](ControlAnswer& its) { show(process, its); });
            break;
        case What::disconnect_process:
            post(answer, [this, command, who](ControlAnswer& its) { disconnect_process(command, who, its); });
            break;
        case What::disconnect_queue_pair:
            post(answer, [this, command, who](ControlAnswer& its) { disconnect_queue_pair(command, who, its); });
            break;
        case What::log_level: answer->done({{"level", level_name(log_level())}}); break;
        case What::set_log_level:
            log_info("{} set the log level to {}, until the next reload or restart", who, level_name(command.level));
            set_log_level(command.level);
            answer->done({{"level", level_name(command.level)}});
            break;
        case What::health: {
            const Health health = ways_.health();
            answer->done({{"healthy", is_healthy(health)}, {"threads", rows_of(health.threads)}});
            break;
        }
        case What::version:
            answer->done({{"version", POLLCORE_VERSION}, {"built", manual::version_text("pollcored")}});
            break;
        case What::drain: order(Order::What::drain, caller, answer); break;
        case What::resume: order(Order::What::resume, caller, answer); break;
        case What::stop: order(Order::What::stop, caller, answer); break;
        case What::reload:
            order(Order::What::reload, caller, answer);
            // Each service that changes may take drain_timeout to end.
            return kMainWithin + static_cast<int>(ways_.services().size() + 1) * runtime_.config.drain_timeout;
    }
    return is_of_main_thread(command.what) ? std::chrono::milliseconds(kMainWithin)
                                           : std::chrono::milliseconds(kControlWithin);
}

std::string ControlCommands::why_late(const ControlCommand& command, ControlAnswer::Given given) const {
    const bool begun = given == ControlAnswer::Given::begun;
    if (is_of_main_thread(command.what)) {
        return begun ? "the daemon's main thread has begun this, and not finished it in time; the log says when it has"
                     : "the daemon's main thread has not begun this in time, and will not carry it out";
    }
    if (begun) {
        return "the control thread has begun this, and not finished it in time";
    }
    const Health health = ways_.health();
    const auto control = std::find_if(health.threads.begin(), health.threads.end(), [](const ThreadHealth& thread) {
        return thread.kind == ThreadHealth::Kind::control;
    });
    const auto busy = control != health.threads.end() ? control->busy : std::chrono::nanoseconds(0);
    return fmt::format("the control thread has made no progress for {} ms; this was not carried out, and will not be",
                       std::chrono::duration_cast<std::chrono::milliseconds>(busy).count());
}

void ControlCommands::post(const std::shared_ptr<ControlAnswer>& answer, Job job) {
    if (posted_->load(std::memory_order_relaxed) >= kPostedMax) {
        return answer->fail("too many commands wait for the control thread", control_wire::kBusy);
    }
    posted_->fetch_add(1, std::memory_order_relaxed);
    // `job` uses this object, which the daemon frees after the runtime: then no job is left.
    runtime_.post([answer, job = std::move(job), posted = posted_] {
        posted->fetch_sub(1, std::memory_order_relaxed);
        if (!answer->begin()) {
            return;
        }
        try {
            job(*answer);
        } catch (const std::exception& error) {
            answer->fail(error.what());
        }
    });
}

void ControlCommands::order(Order::What what, const ControlCaller& caller,
                            const std::shared_ptr<ControlAnswer>& answer) {
    ways_.order({.what = what, .by = "control: " + caller.text(), .answer = answer});
}

ControlJson ControlCommands::status() const {
    const std::vector<ServiceFigures> services = ways_.services();
    std::uint64_t connections = 0;
    for (const ServiceFigures& service : services) {
        connections += service.connections;
    }
    const AttachCounts attached = attach_ != nullptr ? attach_->counts() : AttachCounts{};
    const auto up = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - began_);
    return {{"version", POLLCORE_VERSION},
            {"pid", ::getpid()},
            {"uptime_s", up.count()},
            {"state", ways_.state()},
            {"log_level", level_name(log_level())},
            {"workers", runtime_.config.workers.size()},
            {"devices", runtime_.config.devices.size()},
            {"services", services.size()},
            {"service_connections", connections},
            {"processes", attached.now},
            {"processes_refused", attached.refused},
            {"processes_evicted", attached.evicted},
            {"processes_disconnected", attached.disconnected},
            {"sessions", runtime_.counters.sessions.value()},
            {"queue_pairs", runtime_.counters.queue_pairs.value()},
            {"memory_regions", runtime_.counters.memory_regions.value()}};
}

void ControlCommands::list(const std::string& kind, const std::shared_ptr<ControlAnswer>& answer) {
    // The control thread only copies what there is. The thread that waits makes the text of it.
    const auto listed = [&](auto&& collect) {
        std::string name = kind;
        std::replace(name.begin(), name.end(), '-', '_');
        post(answer, [name, collect](ControlAnswer& its) {
            its.done_by([name, all = collect()] { return list_text(name, all); });
        });
    };
    if (kind == "services") {
        return answer->done({{"services", rows_of(ways_.services())}});
    }
    if (kind == "workers") {
        return listed([this] { return runtime_.workers_here(); });
    }
    if (kind == "devices") {
        return listed([this] { return runtime_.devices_here(); });
    }
    if (kind == "processes") {
        return listed([this] { return attach_ != nullptr ? attach_->processes() : std::vector<AttachedProcess>(); });
    }
    if (kind == "sessions") {
        return listed([this] { return runtime_.sessions_here(); });
    }
    if (kind == "queue-pairs") {
        return listed([this] { return runtime_.queue_pairs_here(); });
    }
    if (kind == "shared-receive-queues") {
        return listed([this] { return runtime_.shared_receive_queues_here(); });
    }
    if (kind == "receive-pools") {
        return listed([this] { return runtime_.receive_pools_here(); });
    }
    if (kind == "listeners") {
        return listed([this] { return runtime_.listeners_here(); });
    }
    listed([this] { return runtime_.memory_regions_here(); });
}

// ---- On the control thread ----

void ControlCommands::show(std::uint32_t process, ControlAnswer& answer) {
    const std::vector<AttachedProcess> all = attach_ != nullptr ? attach_->processes() : std::vector<AttachedProcess>();
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const AttachedProcess& each) { return each.number == process; });
    if (found == all.end()) {
        return answer.fail(fmt::format("there is no process {}", process));
    }
    answer.done_by([shown = *found, sessions = of_process(runtime_.sessions_here(), process),
                    queue_pairs = of_process(runtime_.queue_pairs_here(), process),
                    srqs = of_process(runtime_.shared_receive_queues_here(), process),
                    pools = of_process(runtime_.receive_pools_here(), process),
                    listeners = of_process(runtime_.listeners_here(), process),
                    regions = of_process(runtime_.memory_regions_here(), process)] {
        ControlJson object = object_of(shown);
        object["sessions"] = rows_of(sessions);
        object["queue_pairs"] = rows_of(queue_pairs);
        object["shared_receive_queues"] = rows_of(srqs);
        object["receive_pools"] = rows_of(pools);
        object["listeners"] = rows_of(listeners);
        object["memory_regions"] = rows_of(regions);
        return answer_around(text_of(object));
    });
}

void ControlCommands::disconnect_process(const ControlCommand& command, const std::string& who, ControlAnswer& answer) {
    // The process learns of its operator, but not which of them.
    if (attach_ == nullptr ||
        !attach_->disconnect(command.process, "was disconnected by its operator", command.grace)) {
        return answer.fail(fmt::format("there is no process {}, or it is being taken down already", command.process));
    }
    log_info("{} disconnected client {}{}", who, command.process,
             command.grace.count() == 0 ? "" : fmt::format(", which has {} ms to detach", command.grace.count()));
    answer.done({{"process", command.process}, {"grace_ms", command.grace.count()}});
}

void ControlCommands::disconnect_queue_pair(const ControlCommand& command, const std::string& who,
                                            ControlAnswer& answer) {
    std::vector<ListedQueuePair> fitting = runtime_.queue_pairs_here();
    const std::optional<std::uint32_t> number = as_number(command.queue_pair);
    std::erase_if(fitting, [&](const ListedQueuePair& each) {
        const bool wanted = each.name.view() == command.queue_pair ||
                            stat::harmless(each.name.view()) == command.queue_pair ||  // as a list shows it
                            number == each.qp_num;
        return !wanted || (!command.device.empty() && each.device != command.device);
    });
    if (fitting.empty()) {
        return answer.fail(fmt::format("there is no queue pair {}", printable(command.queue_pair)));
    }
    if (fitting.size() > 1) {
        std::string names;
        for (const ListedQueuePair& each : fitting) {
            if (names.size() > 1000) {
                names += ", and others";
                break;
            }
            names += fmt::format("{}{} on device {}", names.empty() ? "" : ", ", called(each), each.device);
        }
        return answer.fail(
            fmt::format("{} queue pairs are called so: {}; give the number, and the device", fitting.size(), names));
    }
    const ListedQueuePair& qp = fitting.front();
    runtime_.disconnect(qp.handle);
    log_info("{} disconnected {}", who, called(qp));
    answer.done({{"qp_num", qp.qp_num}, {"process", qp.process}, {"device", qp.device}});
}

}  // namespace pollcore::daemon
