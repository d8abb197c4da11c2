#include "control_listing.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "pollcore/flow_control.hpp"
#include "pollstat/harmless.hpp"

namespace pollcore::daemon {
namespace {

using stat::harmless;

std::string_view kind_name(ThreadHealth::Kind kind) noexcept {
    switch (kind) {
        case ThreadHealth::Kind::worker: return "worker";
        case ThreadHealth::Kind::control: return "control";
        case ThreadHealth::Kind::serve: return "serve";
    }
    return "unknown";
}

std::string_view state_name(ThreadHealth::State state) noexcept {
    switch (state) {
        case ThreadHealth::State::working: return "working";
        case ThreadHealth::State::waiting: return "waiting";
        case ThreadHealth::State::asleep: return "asleep";
        case ThreadHealth::State::hangs: return "hangs";
        case ThreadHealth::State::not_running: return "not_running";
    }
    return "unknown";
}

ControlJson limit_of(std::uint64_t most) {
    return most == std::numeric_limits<std::uint64_t>::max() ? ControlJson(nullptr) : ControlJson(most);
}

}  // namespace

ControlJson row_of(const ListedWorker& one) {
    return ControlJson{{"name", harmless(one.name)},     {"core", one.core},
                       {"thread", one.thread},           {"sessions", one.sessions},
                       {"queue_pairs", one.queue_pairs}, {"completion_queues", one.completion_queues}};
}

ControlJson row_of(const ListedDevice& one) {
    return ControlJson{{"name", harmless(one.name)},
                       {"process", one.process},
                       {"lost", one.lost},
                       {"description", harmless(one.description)}};
}

ControlJson row_of(const ListedSession& one) {
    return ControlJson{{"session", one.number},
                       {"name", harmless(one.name.view())},
                       {"process", one.process},
                       {"worker", harmless(one.worker)},
                       {"submission_slots", one.submission_slots},
                       {"completion_slots", one.completion_slots},
                       {"bytes", one.bytes}};
}

ControlJson row_of(const ListedQueuePair& one) {
    return ControlJson{
        {"qp_num", one.qp_num},           {"name", harmless(one.name.view())}, {"process", one.process},
        {"session", one.session},         {"worker", harmless(one.worker)},    {"device", harmless(one.device)},
        {"type", qp_type_name(one.type)}, {"state", qp_state_name(one.state)}, {"flow", flow_control_name(one.flow)}};
}

ControlJson row_of(const ListedSharedReceiveQueue& one) {
    return ControlJson{
        {"shared_receive_queue", one.number}, {"process", one.process}, {"session", one.session},
        {"device", harmless(one.device)},     {"depth", one.depth},     {"queue_pairs", one.queue_pairs}};
}

ControlJson row_of(const ListedReceivePool& one) {
    return ControlJson{{"receive_pool", one.number},
                       {"process", one.process},
                       {"session", one.session},
                       {"device", harmless(one.device)},
                       {"kind", one.ring ? "write_ring" : "buffers"},
                       {"queues", one.queues}};
}

ControlJson row_of(const ListedListener& one) {
    return ControlJson{{"listener", one.number},
                       {"process", one.process},
                       {"device", harmless(one.device)},
                       {"address", harmless(one.address)},
                       {"waiting", one.waiting}};
}

ControlJson row_of(const ListedMemoryRegion& one) {
    return ControlJson{{"memory_region", one.number},
                       {"process", one.process},
                       {"device", harmless(one.device)},
                       {"bytes", one.bytes}};
}

ControlJson row_of(const ServiceFigures& one) {
    return ControlJson{{"name", harmless(one.name)},     {"kind", one.kind},
                       {"device", harmless(one.device)}, {"address", harmless(one.address)},
                       {"connections", one.connections}, {"connections_max", one.connections_max}};
}

ControlJson row_of(const AttachedProcess& one) {
    ControlJson row{{"process", one.number}, {"pid", one.pid}, {"uid", one.uid}, {"ending", one.ending}};
    for (const Holding& holding : one.holdings) {
        if (holding.what == "sessions" || holding.what == "queue_pairs" || holding.what == "bytes") {
            row[std::string(holding.what)] = holding.held;
        }
    }
    row["description"] = one.description;
    return row;
}

ControlJson row_of(const Holding& one) {
    return {{"what", one.what},
            {"held", one.held},
            {"most", limit_of(one.most)},
            {"user_held", one.user_held},
            {"user_most", limit_of(one.user_most)}};
}

ControlJson object_of(const AttachedProcess& process) {
    ControlJson object{{"process", process.number}, {"pid", process.pid},
                       {"uid", process.uid},        {"description", process.description},
                       {"ending", process.ending},  {"own_memory", process.own_memory},
                       {"refused", process.refused}};
    object["holdings"] = rows_of(process.holdings);
    return object;
}

ControlJson row_of(const ThreadHealth& one) {
    return ControlJson{{"name", harmless(one.name)},
                       {"kind", kind_name(one.kind)},
                       {"thread", one.thread_id},
                       {"state", state_name(one.state)},
                       {"busy_ms", std::chrono::duration_cast<std::chrono::milliseconds>(one.busy).count()},
                       {"turns", one.turns}};
}

bool is_healthy(const Health& health) noexcept {
    return std::none_of(health.threads.begin(), health.threads.end(),
                        [](const ThreadHealth& one) { return one.state == ThreadHealth::State::hangs; });
}

}  // namespace pollcore::daemon
