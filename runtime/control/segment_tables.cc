#include "control/segment_tables.hpp"

#include <array>
#include <cctype>

#include "pollcore/completion.hpp"
#include "pollcore/latency.hpp"
#include "pollcore/session.hpp"
#include "statistics/flight_recorder.hpp"
#include "statistics/port_counters.hpp"
#include "worker/worker_qp.hpp"

namespace pollcore::segment {
namespace {

using statistics::FieldSpec;
using statistics::Kind;
using statistics::TableSpec;
using statistics::Unit;
using Fields = std::vector<FieldSpec>;

constexpr FieldSpec text(std::string_view name, std::uint16_t bytes = kNameBytes) {
    return {name, Kind::text, Unit::none, bytes};
}
constexpr FieldSpec id(std::string_view name) {
    return {name, Kind::id};
}
constexpr FieldSpec gauge(std::string_view name, Unit unit = Unit::none) {
    return {name, Kind::gauge, unit};
}
constexpr FieldSpec bytes(std::string_view name) {
    return {name, Kind::counter, Unit::bytes};
}
/// A stage of a request's life (SessionStages).
constexpr FieldSpec stage(std::string_view name) {
    return {name, Kind::latency, Unit::cycles, LatencyHistogram::kBuckets};
}

constexpr std::string_view kIdleNames[kIdlePolicies] = {"idle_spin", "idle_pause", "idle_monitor", "idle_yield",
                                                        "idle_event"};

void add(Fields& fields, const Fields& more) {
    fields.insert(fields.end(), more.begin(), more.end());
}
template <class Counters, std::size_t N>
void add(Fields& fields, const CounterField<Counters> (&all)[N]) {
    for (const auto& each : all) {
        fields.push_back({each.name, each.kind, each.unit});
    }
}

/// The names of the statuses, such as "wr_flush_err". The place behind the last status counts unknown ones.
const std::array<std::string, WorkerQp::kErrorStatuses>& error_names() {
    static const auto kNames = [] {
        constexpr std::string_view kPrefix = "IBV_WC_";
        std::array<std::string, WorkerQp::kErrorStatuses> names;
        for (std::size_t i = 0; i < names.size(); ++i) {
            for (const char c : status_name(static_cast<Status>(i)).substr(kPrefix.size())) {
                names[i] += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
            }
        }
        return names;
    }();
    return kNames;
}

/// The fields of FigureTotals.
Fields figures() {
    Fields fields{{"sends"}, bytes("send_bytes"), {"receives"}, bytes("receive_bytes"), {"errors"}};
    // No completion that succeeds is an error.
    for (std::size_t i = 1; i < WorkerQp::kErrorStatuses; ++i) {
        fields.push_back({error_names()[i]});
    }
    return fields;
}

/// Why a session refused requests: the names of Refusal, which are string constants.
Fields refusals() {
    static const auto kNames = [] {
        std::array<std::string, kRefusalKinds> names;
        for (std::size_t i = 0; i < names.size(); ++i) {
            names[i] = "refused_" + std::string(refusal_name(static_cast<Refusal>(i)));
        }
        return names;
    }();
    Fields fields;
    for (std::size_t i = 1; i < kRefusalKinds; ++i) {
        fields.push_back({kNames[i]});
    }
    return fields;
}

TableSpec runtimes() {
    Fields fields{id("runtime"), text("version"), gauge("workers"), gauge("stopping", Unit::boolean)};
    add(fields, kControlCounters);
    return {"runtime", 1, std::move(fields)};
}

TableSpec workers(std::size_t n) {
    Fields fields{id("worker"), text("name"), gauge("core"), gauge("thread")};
    add(fields, kWorkerCounters);
    for (const std::string_view name : kIdleNames) {
        fields.push_back({name, Kind::counter, Unit::cycles});
    }
    fields.push_back({"wake_up", Kind::histogram, Unit::cycles, kWakeBuckets});
    return {"worker", static_cast<std::uint32_t>(n), std::move(fields)};
}

TableSpec devices() {
    Fields fields{id("device"),
                  text("name"),
                  id("process"),
                  text("description", kDescriptionBytes),
                  gauge("lost", Unit::boolean),
                  {"rnr_received"},
                  {"rnr_sent"}};
    add(fields, figures());
    return {"device", kDeviceRows, std::move(fields)};
}

TableSpec sessions() {
    Fields fields{id("session"),
                  text("name"),
                  id("worker"),
                  id("process"),
                  {"accepted"},
                  {"completed"},
                  {"retired"},
                  {"throttled"},
                  {"refused"},
                  {"refused_by_worker"},
                  gauge("submission_ring_slots"),
                  gauge("submission_ring_most"),
                  gauge("completion_ring_slots"),
                  gauge("completion_ring_most"),
                  stage("submission_ring"),
                  stage("device_stage"),
                  stage("completion_ring")};
    add(fields, refusals());
    return {"session", kSessionRows, std::move(fields)};
}

TableSpec queue_pairs(std::uint32_t most) {
    Fields fields{id("queue_pair"),
                  text("name"),
                  id("first_session"),
                  id("worker"),
                  id("device"),
                  id("process"),
                  gauge("qp_num"),
                  text("type", kShortBytes),
                  text("state", kShortBytes),
                  text("flow", kShortBytes)};
    add(fields, figures());
    return {"queue_pair", most, std::move(fields)};
}

TableSpec processes() {
    Fields fields{id("process"),
                  text("name"),
                  gauge("pid"),
                  gauge("uid"),
                  gauge("ending", Unit::boolean),
                  gauge("own_memory", Unit::boolean),
                  gauge("sessions"),
                  gauge("queue_pairs"),
                  gauge("shared_receive_queues"),
                  gauge("receive_pools"),
                  gauge("listeners"),
                  gauge("memory_regions"),
                  gauge("memory_windows"),
                  gauge("address_handles"),
                  gauge("protection_domains"),
                  gauge("work_requests"),
                  gauge("bytes", Unit::bytes),
                  gauge("pinned_bytes", Unit::bytes),
                  {"refused"}};
    add(fields, figures());
    return {"process", kAttachedMax, std::move(fields)};
}

/// The fields of a stall and of the ThreadSample that belongs to it.
TableSpec stalls() {
    return {"stall",
            kStallRows,
            {id("stall"), id("worker"), gauge("began", Unit::date), gauge("length", Unit::cycles),
             gauge("voluntary_switches"), gauge("involuntary_switches"), gauge("run_delay", Unit::nanoseconds),
             gauge("kernel_time", Unit::nanoseconds), gauge("steal", Unit::nanoseconds),
             gauge("interrupts", Unit::nanoseconds), gauge("minor_faults"), gauge("major_faults"),
             gauge("frequency_khz"), gauge("began_clock", Unit::cycles)}};
}

/// The fields of FollowedRequest.
TableSpec followed() {
    return {"followed",
            kFollowedRows,
            {id("followed"), id("session"), id("queue_pair"), gauge("opcode"), gauge("submitted", Unit::cycles),
             gauge("taken", Unit::cycles), gauge("completed", Unit::cycles), gauge("polled", Unit::cycles)}};
}

}  // namespace

std::vector<TableSpec> tables(const Config& config) {
    return {runtimes(),
            workers(config.workers.size()),
            devices(),
            sessions(),
            queue_pairs(config.qps_max),
            processes(),
            stalls(),
            followed(),
            statistics::PortCounters::table(),
            statistics::FlightRecorder::table()};
}

}  // namespace pollcore::segment
