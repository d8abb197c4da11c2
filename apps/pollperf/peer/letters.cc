#include "pollperf/peer/letters.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include <fmt/format.h>

#include "pollperf/report/json_document.hpp"

namespace pollcore::perf {
namespace {

using Letter = nlohmann::json;

// A server gives a client no more memory for the buffers of a path.
constexpr std::uint64_t kMemoryMost = 8ull << 30;
constexpr std::uint32_t kConnectionsMost = 4096;
constexpr std::uint32_t kDepthMost = 65536;
constexpr std::uint32_t kPostListMost = 256;
constexpr std::uint64_t kAnyNumber = std::numeric_limits<std::uint64_t>::max();

// The value of an enumeration by its name.
template <class T, class Names>
T read_name(const Letter& json, const char* key, std::initializer_list<T> values, Names&& name_of) {
    const std::string name = read_text(json, key);
    for (const T value : values) {
        if (name_of(value) == name) {
            return value;
        }
    }
    throw MeasurementError(fmt::format("the peer has sent no proper value of '{}'", key));
}

const Letter& member(const Letter& json, const char* key) {
    const auto at = json.find(key);
    if (at == json.end()) {
        throw MeasurementError(fmt::format("the peer has sent no '{}'", key));
    }
    return *at;
}

}  // namespace

std::uint64_t ConnectionPlan::bytes() const {
    constexpr std::uint64_t kBytesOfRequest = 256;  // in a queue, and in the books about it
    return std::uint64_t{threads} * connections *
           (setup(1).layout.bytes() + kBytesOfRequest * (std::uint64_t{send_depth} + receive_slots + post_list));
}

PathSetup ConnectionPlan::setup(unsigned sides) const {
    PathSetup setup;
    setup.layout = EndLayout(size, slots, receive_slots, receive_buffers, transport);
    setup.ends = sides * connections;
    setup.transport = transport;
    setup.send_depth = send_depth;
    setup.post_list = post_list;
    setup.mtu = mtu;
    setup.flow = flow;
    setup.sessions = sessions;
    return setup;
}

ConnectionPlan connection_plan(const TestOptions& options) {
    constexpr std::uint32_t kSendDepthLeast = 64;
    const EndLayout layout = layout_of(options);
    return {.transport = options.transport,
            .size = layout.size,
            .slots = layout.out_slots,
            .receive_slots = layout.receive_slots,
            .receive_buffers = layout.receive_buffers,
            .send_depth = std::max(options.tx_depth, kSendDepthLeast),
            .post_list = options.post_list,
            .threads = options.threads,
            .connections = options.queue_pairs / options.threads,
            .sessions = options.sessions / options.threads,
            .mtu = options.mtu,
            .flow = options.flow,
            .rdma_cm = options.rdma_cm};
}

Letter to_json(const ConnectionPlan& plan) {
    return {{"transport", transport_name(plan.transport)},
            {"size", plan.size},
            {"slots", plan.slots},
            {"receive_slots", plan.receive_slots},
            {"receive_buffers", plan.receive_buffers},
            {"send_depth", plan.send_depth},
            {"post_list", plan.post_list},
            {"threads", plan.threads},
            {"connections", plan.connections},
            {"sessions", plan.sessions},
            {"mtu", plan.mtu},
            {"flow", flow_control_name(plan.flow)},
            {"rdma_cm", plan.rdma_cm}};
}

ConnectionPlan read_connection_plan(const Letter& json) {
    ConnectionPlan plan;
    plan.transport = read_name(json, "transport", {QpType::rc, QpType::uc, QpType::ud}, transport_name);
    plan.size = read_number<std::uint32_t>(json, "size", 1, 64u << 20);
    plan.slots = read_number<std::uint32_t>(json, "slots", 1, kDepthMost);
    plan.receive_slots = read_number<std::uint32_t>(json, "receive_slots", 1, kDepthMost);
    plan.receive_buffers = read_number<std::uint32_t>(json, "receive_buffers", 1, plan.receive_slots);
    plan.send_depth = read_number<std::uint32_t>(json, "send_depth", 1, kDepthMost);
    plan.post_list = read_number<std::uint32_t>(json, "post_list", 1, std::min(plan.send_depth, kPostListMost));
    plan.threads = read_number<std::uint32_t>(json, "threads", 1, 256);
    plan.connections = read_number<std::uint32_t>(json, "connections", 1, kConnectionsMost);
    plan.sessions = read_number<std::uint32_t>(json, "sessions", 1, plan.connections);
    plan.mtu = read_number<std::uint16_t>(json, "mtu", 0, 4096);
    const auto flow = flow_control_named(read_text(json, "flow"));
    if (!flow) {
        throw MeasurementError("the peer has sent no proper value of 'flow'");
    }
    plan.flow = *flow;
    plan.rdma_cm = read_bool(json, "rdma_cm");
    const std::uint64_t bytes = plan.bytes();
    if (plan.threads * plan.connections > kConnectionsMost || bytes > kMemoryMost) {
        throw MeasurementError(fmt::format("the peer asks for {} queue pairs with {} MiB; there may be {} with {} MiB",
                                           plan.threads * plan.connections, bytes >> 20, kConnectionsMost,
                                           kMemoryMost >> 20));
    }
    return plan;
}

Letter to_json(const std::vector<EndInfo>& ends) {
    Letter array = Letter::array();
    for (const EndInfo& end : ends) {
        array.push_back({{"gid", end.qp.gid},
                         {"qp_num", end.qp.qp_num},
                         {"psn", end.qp.psn},  // UD: the qkey
                         {"lid", end.qp.lid},
                         {"mtu", end.qp.mtu},
                         {"flow_addr", end.qp.flow.addr},
                         {"flow_rkey", end.qp.flow.rkey},
                         {"flow", flow_control_name(end.qp.flow.kind)},
                         {"type", transport_name(end.qp.type)},
                         {"addr", end.memory.addr},
                         {"rkey", end.memory.rkey}});
    }
    return array;
}

std::vector<EndInfo> read_ends(const Letter& json, std::size_t count) {
    constexpr auto kAny32 = std::numeric_limits<std::uint32_t>::max();
    if (!json.is_array() || json.size() != count) {
        throw MeasurementError(fmt::format("the peer has not sent {} ends", count));
    }
    std::vector<EndInfo> ends;
    for (const Letter& one : json) {
        EndInfo end;
        const Letter& gid = member(one, "gid");
        if (!gid.is_array() || gid.size() != end.qp.gid.size()) {
            throw MeasurementError("the peer has sent no proper GID");
        }
        for (std::size_t i = 0; i < end.qp.gid.size(); ++i) {
            if (!gid[i].is_number_unsigned() || gid[i].get<std::uint64_t>() > 255) {
                throw MeasurementError("the peer has sent no proper GID");
            }
            end.qp.gid[i] = gid[i].get<std::uint8_t>();
        }
        end.qp.qp_num = read_number<std::uint32_t>(one, "qp_num", 0, 0xffffff);
        end.qp.psn = read_number<std::uint32_t>(one, "psn", 0, kAny32);
        end.qp.lid = read_number<std::uint16_t>(one, "lid", 0, 0xffff);
        end.qp.mtu = read_number<std::uint16_t>(one, "mtu", 0, 4096);
        end.qp.type = read_name(one, "type", {QpType::rc, QpType::uc, QpType::ud}, transport_name);
        end.qp.flow.addr = read_number<std::uint64_t>(one, "flow_addr", 0, kAnyNumber);
        end.qp.flow.rkey = read_number<std::uint32_t>(one, "flow_rkey", 0, kAny32);
        const auto flow = flow_control_named(read_text(one, "flow"));
        if (!flow) {
            throw MeasurementError("the peer has sent no proper value of 'flow'");
        }
        end.qp.flow.kind = *flow;
        end.memory.addr = read_number<std::uint64_t>(one, "addr", 0, kAnyNumber);
        end.memory.rkey = read_number<std::uint32_t>(one, "rkey", 0, kAny32);
        ends.push_back(end);
    }
    return ends;
}

Letter to_json(const Workload& workload) {
    return {{"test", test_name(workload.test)},
            {"op", op_name(workload.op)},
            {"size", workload.size},
            {"verify", workload.verify},
            {"one_sided", workload.one_sided},
            {"bidirectional", workload.bidirectional},
            {"tx_depth", workload.tx_depth},
            {"post_list", workload.post_list},
            {"signal_every", workload.signal_every}};
}

Workload read_workload(const Letter& json, const ConnectionPlan& plan) {
    Workload workload;
    workload.test = read_name(json, "test", {Test::lat, Test::bw, Test::rate}, test_name);
    workload.op =
        read_name(json, "op", {Op::send, Op::write, Op::write_imm, Op::read, Op::fetch_add, Op::compare_swap}, op_name);
    workload.transport = plan.transport;
    workload.size = read_number<std::uint32_t>(json, "size", 1, plan.size);
    workload.verify = read_bool(json, "verify");
    workload.one_sided = read_bool(json, "one_sided");
    workload.bidirectional = read_bool(json, "bidirectional");
    workload.tx_depth = read_number<std::uint32_t>(json, "tx_depth", 1, plan.send_depth);
    workload.post_list = read_number<std::uint32_t>(json, "post_list", 1, plan.post_list);
    workload.signal_every = read_number<std::uint32_t>(json, "signal_every", 1, plan.send_depth);
    if (workload.one_sided && workload.signal_every > std::max(1u, workload.tx_depth / 2)) {
        throw MeasurementError("the peer asks for a completion too seldom");
    }
    if (!can_do(plan.transport, workload.op)) {
        throw MeasurementError(fmt::format("{} has no {}", transport_name(plan.transport), op_name(workload.op)));
    }
    return workload;
}

Letter to_json(const Until& until) {
    return until.by_time() ? Letter{{"ns", static_cast<std::uint64_t>(until.time.count())}}
                           : Letter{{"operations", until.operations}};
}

Until read_until(const Letter& json) {
    Until until;
    if (json.contains("ns")) {
        until.time = std::chrono::nanoseconds(
            read_number<std::uint64_t>(json, "ns", 1, static_cast<std::uint64_t>(24) * 3600 * 1'000'000'000));
    } else {
        until.operations = read_number<std::uint64_t>(json, "operations", 1, kAnyNumber);
    }
    return until;
}

Letter to_json(const HostFacts& host) {
    return host_json(host);
}

HostFacts read_host(const Letter& json) {
    HostFacts host;
    host.name = read_text(json, "name");
    host.machine.cpu_model = read_text(json, "cpu");
    host.machine.cpus_online = read_number<std::uint32_t>(json, "cpus_online", 0, 1u << 20);
    host.machine.kernel = read_text(json, "kernel");
    host.governor = read_text(json, "governor");
    host.hypervisor = read_text(json, "hypervisor");
    host.isolated_cpus = read_text(json, "isolated_cpus");
    host.clock = read_text(json, "clock");
    return host;
}

PathKind read_path(const Letter& json) {
    return read_name(json, "path", {PathKind::direct, PathKind::event, PathKind::runtime, PathKind::attached},
                     path_name);
}

bool read_bool(const Letter& json, const char* key) {
    const Letter& value = member(json, key);
    if (!value.is_boolean()) {
        throw MeasurementError(fmt::format("the peer has sent no proper value of '{}'", key));
    }
    return value.get<bool>();
}

std::string read_text(const Letter& json, const char* key) {
    constexpr std::size_t kTextMost = 400;
    const auto at = json.find(key);
    std::string text = at != json.end() && at->is_string() ? at->get<std::string>() : std::string();
    std::replace_if(
        text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
    return text.substr(0, kTextMost);
}

const Letter& read_any(const Letter& json, const char* key) {
    // Not a copy: copying a letter of many levels would take a stack of as many.
    static const Letter kNothing;
    const auto at = json.find(key);
    return at != json.end() ? *at : kNothing;
}

std::vector<std::uint64_t> read_counts(const Letter& json, const char* key, std::size_t count) {
    const Letter& value = member(json, key);
    if (!value.is_array() || value.size() != count ||
        !std::all_of(value.begin(), value.end(), [](const Letter& one) { return one.is_number_unsigned(); })) {
        throw MeasurementError(fmt::format("the peer has sent no proper value of '{}'", key));
    }
    return value.get<std::vector<std::uint64_t>>();
}

}  // namespace pollcore::perf
