// Writes what the runtime and its workers count into the statistics segment. The control thread copies the counters
// from where their writers have them, so that the segment costs a worker nothing.
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "base/log.hpp"
#include "config/users_and_groups.hpp"
#include "control/runtime_state.hpp"
#include "pollcore/statistics.hpp"
#include "pollcore/version.hpp"
#include "statistics/flight_recorder.hpp"
#include "statistics/segment_writer.hpp"

namespace pollcore {
namespace {

using statistics::FieldSpec;
using statistics::Kind;
using statistics::Unit;
using Row = statistics::SegmentWriter::RowWriter;

// The tables, in their order in the segment.
enum TableIndex : std::size_t { kRuntimes, kWorkers, kDevices, kSessions, kQueuePairs, kProcesses, kEvents };

constexpr std::uint16_t kNameBytes = 64;
constexpr std::uint16_t kShortBytes = 16;
constexpr std::uint32_t kDevicesMaxHere = 1024;   // with those that are opened for attached processes
constexpr std::uint32_t kSessionsMaxHere = 4096;  // of all workers together; further sessions have no row
// In each tick a part of the queue pairs is written: all of them in about a second.
constexpr std::size_t kQueuePairsInTick = 4096;

constexpr FieldSpec text(std::string_view name) {
    return {name, Kind::text, Unit::none, kNameBytes};
}
constexpr FieldSpec short_text(std::string_view name) {
    return {name, Kind::text, Unit::none, kShortBytes};
}
constexpr FieldSpec id(std::string_view name) {
    return {name, Kind::id};
}
constexpr FieldSpec gauge(std::string_view name, Unit unit = Unit::none) {
    return {name, Kind::gauge, unit};
}

/// A stage of a request's life (SessionStages).
constexpr FieldSpec stage(std::string_view name) {
    return {name, Kind::latency, Unit::cycles, LatencyHistogram::kBuckets};
}

template <class Counters>
struct CounterField {
    std::string_view name;
    Counter Counters::*member;
    Kind kind = Kind::counter;
    Unit unit = Unit::none;
};

constexpr CounterField<WorkerCounters> kWorkerCounters[] = {
    {"steps", &WorkerCounters::steps},
    {"busy_steps", &WorkerCounters::busy_steps},
    {"sends", &WorkerCounters::sends},
    {"send_doorbells", &WorkerCounters::send_doorbells},
    {"receives", &WorkerCounters::receives},
    {"receive_doorbells", &WorkerCounters::receive_doorbells},
    {"completions", &WorkerCounters::completions},
    {"delivered", &WorkerCounters::delivered},
    {"retired", &WorkerCounters::retired},
    {"forced_signals", &WorkerCounters::forced_signals},
    {"markers", &WorkerCounters::markers},
    {"post_failures", &WorkerCounters::post_failures},
    {"rendezvous", &WorkerCounters::rendezvous},
    {"waits_for_credit", &WorkerCounters::waits_for_credit},
    {"grants", &WorkerCounters::grants},
    {"flow_faults", &WorkerCounters::flow_faults},
    {"refused_requests", &WorkerCounters::refused_requests},
    {"cut_short", &WorkerCounters::cut_short},
    {"stale_completions", &WorkerCounters::stale_completions},
    {"failed_polls", &WorkerCounters::failed_polls},
    {"broken_sessions", &WorkerCounters::broken_sessions},
    {"commands", &WorkerCounters::commands},
    {"sleeps", &WorkerCounters::sleeps},
    {"spurious_wakeups", &WorkerCounters::spurious_wakeups},
    {"cq_events", &WorkerCounters::cq_events},
    {"cq_event_acks", &WorkerCounters::cq_event_acks},
    {"failed_arms", &WorkerCounters::failed_arms},
    {"failed_channels", &WorkerCounters::failed_channels},
    {"applications_woken", &WorkerCounters::applications_woken},
    {"asleep", &WorkerCounters::asleep, Kind::gauge, Unit::boolean},
    {"longest_step", &WorkerCounters::longest_step_cycles, Kind::gauge, Unit::cycles},
};
constexpr std::string_view kIdleNames[kIdlePolicies] = {"idle_spin", "idle_pause", "idle_monitor", "idle_yield",
                                                        "idle_event"};

constexpr CounterField<ControlCounters> kControlCounters[] = {
    {"command_ring_full", &ControlCounters::command_ring_full},
    {"answers_untaken", &ControlCounters::answers_untaken},
    {"cut_short", &ControlCounters::cut_short},
    {"failed_cqs", &ControlCounters::failed_cqs},
    {"async_events", &ControlCounters::async_events},
    {"events_lost", &ControlCounters::events_lost},
    {"devices_lost", &ControlCounters::devices_lost},
    {"connections", &ControlCounters::connections},
    {"disconnections", &ControlCounters::disconnections},
    {"requests_refused", &ControlCounters::requests_refused},
    {"hangs", &ControlCounters::hangs},
    {"sessions", &ControlCounters::sessions, Kind::gauge},
    {"queue_pairs", &ControlCounters::queue_pairs, Kind::gauge},
    {"completion_queues", &ControlCounters::completion_queues, Kind::gauge},
    {"shared_receive_queues", &ControlCounters::shared_receive_queues, Kind::gauge},
    {"receive_pools", &ControlCounters::receive_pools, Kind::gauge},
    {"memory_regions", &ControlCounters::memory_regions, Kind::gauge},
    {"protection_domains", &ControlCounters::protection_domains, Kind::gauge},
};

template <class Counters, std::size_t N>
void describe(std::vector<FieldSpec>& fields, const CounterField<Counters> (&all)[N]) {
    for (const auto& each : all) {
        fields.push_back({each.name, each.kind, each.unit});
    }
}
template <class Counters, std::size_t N>
void write(Row& row, const Counters& from, const CounterField<Counters> (&all)[N]) {
    for (const auto& each : all) {
        row << (from.*each.member).value();
    }
}

std::string_view name_of(QpType type) noexcept {
    switch (type) {
        case QpType::rc: return "RC";
        case QpType::uc: return "UC";
        case QpType::ud: return "UD";
    }
    return "?";
}

std::string_view name_of(QpState state) noexcept {
    switch (state) {
        case QpState::reset: return "RESET";
        case QpState::init: return "INIT";
        case QpState::ready: return "RTS";
        case QpState::error: return "ERR";
        case QpState::closed: return "closed";
    }
    return "?";
}

gid_t readers_of(const StatisticsConfig& config) {
    if (config.group.empty()) {
        return config::kNoAccount;
    }
    const auto number = config::account_number(config::AccountKind::group, config.group);
    if (const auto* known = std::get_if<std::uint32_t>(&number)) {
        return *known;
    }
    throw Error(EINVAL, fmt::format("this machine knows no group \"{}\"", config.group));
}

std::vector<statistics::TableSpec> tables_for(const Config& config) {
    std::vector<FieldSpec> runtime{id("runtime"), text("version"), gauge("workers"), gauge("stopping", Unit::boolean)};
    describe(runtime, kControlCounters);
    std::vector<FieldSpec> worker{id("worker"), text("name"), gauge("core"), gauge("thread")};
    describe(worker, kWorkerCounters);
    for (const std::string_view name : kIdleNames) {
        worker.push_back({name, Kind::counter, Unit::cycles});
    }
    worker.push_back({"wake_up", Kind::histogram, Unit::cycles, kWakeBuckets});
    return {
        {"runtime", 1, std::move(runtime)},
        {"worker", static_cast<std::uint32_t>(config.workers.size()), std::move(worker)},
        {"device",
         kDevicesMaxHere,
         {id("device"), text("name"), id("process"), text("description"), gauge("lost", Unit::boolean)}},
        {"session",
         kSessionsMaxHere,
         {id("session"),
          text("name"),
          id("worker"),
          id("process"),
          {"retired"},
          {"throttled"},
          {"refused"},
          stage("submission_ring"),
          stage("device_stage"),
          stage("completion_ring")}},
        {"queue_pair",
         config.qps_max,
         {id("queue_pair"), text("name"), id("first_session"), id("worker"), id("device"), id("process"),
          gauge("qp_num"), short_text("type"), short_text("state"), short_text("flow")}},
        {"process",
         kAttachedMax,
         {id("process"),
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
          {"refused"}}},
        statistics::FlightRecorder::table(),
    };
}

}  // namespace

// The runtime works without statistics if there is no memory for them.
void RuntimeState::start_statistics_here() noexcept {
    if (config.statistics.segment != StatisticsConfig::Segment::on) {
        return;
    }
    try {
        const std::uint32_t group = readers_of(config.statistics);
        statistics::remove_dead_segments();
        statistics_ = std::make_unique<statistics::SegmentWriter>(
            statistics::SegmentOptions{
                .file = statistics::new_segment_file(),
                .name = config.statistics.name.empty() ? program_invocation_short_name : config.statistics.name,
                .group = group,
                .cycles_per_second = platform->cycles_from(std::chrono::seconds(1))},
            tables_for(config));
        flight_recorder_.emplace(*statistics_, kEvents);
        log_info("statistics: {}", statistics_->file().string());
    } catch (const std::exception& error) {
        log_warning("there are no statistics: {}", error.what());
    }
}

void RuntimeState::write_statistics_here() noexcept {
    if (statistics_ == nullptr) {
        return;
    }
    {
        Row row = statistics_->write(kRuntimes, 0);
        row << 1;
        row.text(POLLCORE_VERSION, kNameBytes) << workers_.size() << !running_.load();
        write(row, counters, kControlCounters);
    }
    for (std::uint32_t i = 0; i < workers_.size(); ++i) {
        write_worker_here(i);
    }
    for (const auto& device : devices_) {
        if (device->index >= kDevicesMaxHere) {
            continue;
        }
        if (device->device == nullptr) {
            statistics_->clear(kDevices, device->index);
            continue;
        }
        Row row = statistics_->write(kDevices, device->index);
        row << device->index + 1;
        row.text(device->config.name, kNameBytes) << device->client;
        row.text(device->description, kNameBytes) << device->lost;
    }
    std::uint32_t at = 0;
    for (const auto& [number, session] : sessions_) {
        if (at < kSessionsMaxHere) {
            write_session_here(at++, session);
        }
    }
    for (; at < session_rows_; ++at) {
        statistics_->clear(kSessions, at);
    }
    session_rows_ = std::min(static_cast<std::uint32_t>(sessions_.size()), kSessionsMaxHere);
    for (std::size_t i = 0; i < std::min(kQueuePairsInTick, qps_.size()); ++i) {
        next_qp_row_ = next_qp_row_ + 1 < qps_.size() ? next_qp_row_ + 1 : 0;
        write_queue_pair_here(next_qp_row_);
    }
    write_processes_here();
    statistics_->updated(steady_ns(platform->now()));
}

void RuntimeState::write_worker_here(std::uint32_t index) noexcept {
    const WorkerSlot& worker = *workers_[index];
    const WorkerCounters& from = worker.worker->counters();
    Row row = statistics_->write(kWorkers, index);
    row << index + 1;
    row.text(worker.config.name, kNameBytes) << worker.config.core << worker.worker->heartbeat().thread_id();
    write(row, from, kWorkerCounters);
    for (const std::uint64_t cycles : idle_cycles_now(from, platform->cycles())) {
        row << cycles;
    }
    for (const Counter& count : from.wake_cycles) {
        row << count.value();
    }
}

void RuntimeState::write_session_here(std::uint32_t at, const SessionSlot& session) noexcept {
    const SessionHeader& header = *session_header(session.block.data());
    Row row = statistics_->write(kSessions, at);
    row << session.id;
    row.text(session.name.view(), kNameBytes)
        << session.worker + 1 << (session.client != nullptr ? session.client->id() : 0)
        << header.retired.load(std::memory_order_relaxed) << header.throttled.load(std::memory_order_relaxed)
        << (session.end != nullptr ? session.end->refused() : session.refused);
    // An attached process may have written anything there. These are only numbers.
    const auto& stages = *at_offset<const SessionStages>(session.block.data(), session.layout.stages());
    for (const LatencyCounters* stage : {&stages.submission_ring, &stages.device, &stages.completion_ring}) {
        for (const Counter& count : stage->counts) {
            row << count.value();
        }
    }
}

void RuntimeState::write_processes_here() noexcept {
    std::uint32_t at = 0;
    if (host_ != nullptr) {
        try {
            host_->each_process([&](const ProcessFigures& its) {
                if (at >= kAttachedMax) {
                    return;
                }
                Row row = statistics_->write(kProcesses, at++);
                row << its.number;
                row.text(its.name, kNameBytes)
                    << its.pid << its.uid << its.ending << its.own_memory << its.sessions << its.queue_pairs
                    << its.shared_receive_queues << its.receive_pools << its.listeners << its.memory_regions
                    << its.memory_windows << its.address_handles << its.protection_domains << its.work_requests
                    << its.bytes << its.pinned_bytes << its.refused;
            });
        } catch (const std::bad_alloc&) {
            return;  // the next tick tries again
        }
    }
    for (std::uint32_t gone = at; gone < process_rows_; ++gone) {
        statistics_->clear(kProcesses, gone);
    }
    process_rows_ = at;
}

void RuntimeState::write_queue_pair_here(std::size_t index) noexcept {
    const QpSlot* const qp = qps_[index].get();
    if (qp == nullptr) {
        return statistics_->clear(kQueuePairs, static_cast<std::uint32_t>(index));
    }
    const WorkerSlot& worker = *workers_[qp->worker];
    const auto& shares = qp->end->options().shares;
    const std::uint32_t first_session = shares.empty() ? 0 : worker.sessions.at(shares.front().session);
    Row row = statistics_->write(kQueuePairs, static_cast<std::uint32_t>(index));
    row << bits_of(qp->handle);
    row.text(qp->name.view(), kNameBytes)
        << first_session << qp->worker + 1 << qp->device + 1 << qp->client << qp->qp_num;
    row.text(name_of(qp->type), kShortBytes)
        .text(name_of(qp->state), kShortBytes)
        .text(qp->flow == FlowControl::off ? "" : flow_control_text(qp->flow), kShortBytes);
}

}  // namespace pollcore
