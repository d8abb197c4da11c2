// The tables of a runtime's statistics segment, and their fields.
//
// Thread safety: constants and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pollcore/config.hpp"
#include "pollcore/counters.hpp"
#include "pollcore/statistics.hpp"
#include "statistics/segment_writer.hpp"

namespace pollcore::segment {

/// The tables, in their order in the segment.
enum TableIndex : std::size_t {
    kRuntimes,
    kWorkers,
    kDevices,
    kSessions,
    kQueuePairs,
    kProcesses,
    kStalls,
    kFollowed,
    kPortCounters,
    kEvents
};

inline constexpr std::uint16_t kNameBytes = 64;
inline constexpr std::uint16_t kDescriptionBytes = 128;
inline constexpr std::uint16_t kShortBytes = 16;
inline constexpr std::uint32_t kDeviceRows = 1024;    // with those that are opened for attached processes
inline constexpr std::uint32_t kSessionRows = 4096;   // of all workers together; further sessions have no row
inline constexpr std::uint32_t kStallRows = 256;      // the last stalls
inline constexpr std::uint32_t kFollowedRows = 4096;  // the last requests that were followed

/// A counter of a struct, and the field that holds it.
template <class Counters>
struct CounterField {
    std::string_view name;
    Counter Counters::*member;
    statistics::Kind kind = statistics::Kind::counter;
    statistics::Unit unit = statistics::Unit::none;
};

inline constexpr CounterField<WorkerCounters> kWorkerCounters[] = {
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
    {"asleep", &WorkerCounters::asleep, statistics::Kind::gauge, statistics::Unit::boolean},
    {"longest_step", &WorkerCounters::longest_step_cycles, statistics::Kind::gauge, statistics::Unit::cycles},
    {"stalls", &WorkerCounters::stalls},
    {"stall_time", &WorkerCounters::stall_cycles, statistics::Kind::counter, statistics::Unit::cycles},
};

inline constexpr CounterField<ControlCounters> kControlCounters[] = {
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
    {"sessions", &ControlCounters::sessions, statistics::Kind::gauge},
    {"queue_pairs", &ControlCounters::queue_pairs, statistics::Kind::gauge},
    {"completion_queues", &ControlCounters::completion_queues, statistics::Kind::gauge},
    {"shared_receive_queues", &ControlCounters::shared_receive_queues, statistics::Kind::gauge},
    {"receive_pools", &ControlCounters::receive_pools, statistics::Kind::gauge},
    {"memory_regions", &ControlCounters::memory_regions, statistics::Kind::gauge},
    {"protection_domains", &ControlCounters::protection_domains, statistics::Kind::gauge},
};

/// All tables. Their rows are written by RuntimeStatistics, in the order of the fields.
[[nodiscard]] std::vector<statistics::TableSpec> tables(const Config& config);

}  // namespace pollcore::segment
