// Which columns pollstat's live view shows of each table.
//
// Thread safety: constants and pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

namespace pollcore::stat {

inline constexpr std::size_t kSparkline = 24;  // looks

enum class Show : std::uint8_t {
    text,
    number,
    amount,     ///< a number, shortened
    rate,       ///< of a counter: its growth in a second, or its total
    total,      ///< of a counter
    share,      ///< from 0 to 1, as percent
    duration,   ///< of nanoseconds
    sparkline,  ///< the busy share of the last looks
    per_doorbell,
    p99,    ///< of a latency
    time,   ///< of an event
    level,  ///< of an event
};

struct Column {
    const char* header;
    const char* field;
    int width;  ///< negative: to the left
    Show show;
};

inline constexpr Column kWorkerColumns[] = {{"worker", "name", -16, Show::text},
                                            {"core", "core", 4, Show::number},
                                            {"busy", "busy", 6, Show::share},
                                            {"", "busy", -static_cast<int>(kSparkline), Show::sparkline},
                                            {"sends", "sends", 9, Show::rate},
                                            {"completions", "completions", 11, Show::rate},
                                            {"per doorbell", "send_doorbells", 12, Show::per_doorbell},
                                            {"refused", "refused_requests", 9, Show::rate},
                                            {"longest step", "longest_step", 12, Show::duration},
                                            {"stalls", "stalls", 8, Show::rate},
                                            {"asleep", "asleep", 6, Show::number}};
inline constexpr Column kSessionColumns[] = {{"session", "session", 8, Show::number},
                                             {"name", "name", -24, Show::text},
                                             {"worker", "worker", 6, Show::number},
                                             {"process", "process", 7, Show::number},
                                             {"accepted", "accepted", 9, Show::rate},
                                             {"completed", "completed", 9, Show::rate},
                                             {"p99 to worker", "submission_ring", 13, Show::p99},
                                             {"p99 device", "device_stage", 10, Show::p99},
                                             {"p99 to poll", "completion_ring", 11, Show::p99},
                                             {"throttled", "throttled", 9, Show::rate},
                                             {"refused", "refused", 9, Show::rate}};
inline constexpr Column kQueuePairColumns[] = {{"number", "qp_num", 8, Show::number},
                                               {"name", "name", -24, Show::text},
                                               {"type", "type", -4, Show::text},
                                               {"state", "state", -6, Show::text},
                                               {"sends", "sends", 9, Show::rate},
                                               {"bytes", "send_bytes", 9, Show::rate},
                                               {"receives", "receives", 9, Show::rate},
                                               {"bytes", "receive_bytes", 9, Show::rate},
                                               {"errors", "errors", 7, Show::total},
                                               {"worker", "worker", 6, Show::number},
                                               {"session", "first_session", 7, Show::number},
                                               {"device", "device", 6, Show::number},
                                               {"process", "process", 7, Show::number}};
inline constexpr Column kDeviceColumns[] = {
    {"device", "device", 6, Show::number},   {"name", "name", -16, Show::text},
    {"process", "process", 7, Show::number}, {"lost", "lost", 4, Show::number},
    {"sends", "sends", 9, Show::rate},       {"bytes", "send_bytes", 9, Show::rate},
    {"receives", "receives", 9, Show::rate}, {"bytes", "receive_bytes", 9, Show::rate},
    {"errors", "errors", 7, Show::total},    {"", "description", -40, Show::text}};
inline constexpr Column kRuntimeColumns[] = {
    {"sessions", "sessions", 8, Show::number},      {"queue pairs", "queue_pairs", 11, Show::number},
    {"connections", "connections", 11, Show::rate}, {"disconnections", "disconnections", 14, Show::rate},
    {"regions", "memory_regions", 7, Show::number}, {"events", "async_events", 9, Show::rate},
    {"lost CQs", "failed_cqs", 8, Show::number},    {"lost devices", "devices_lost", 12, Show::number},
    {"cut short", "cut_short", 9, Show::number},    {"hangs", "hangs", 5, Show::number}};

inline constexpr Column kProcessColumns[] = {{"process", "process", 7, Show::number},
                                             {"name", "name", -24, Show::text},
                                             {"pid", "pid", 8, Show::number},
                                             {"uid", "uid", 6, Show::number},
                                             {"sends", "sends", 9, Show::rate},
                                             {"receives", "receives", 9, Show::rate},
                                             {"errors", "errors", 7, Show::total},
                                             {"sessions", "sessions", 8, Show::number},
                                             {"queue pairs", "queue_pairs", 11, Show::number},
                                             {"regions", "memory_regions", 7, Show::number},
                                             {"bytes", "bytes", 8, Show::amount},
                                             {"pinned", "pinned_bytes", 8, Show::amount},
                                             {"refused", "refused", 9, Show::rate}};

inline constexpr Column kEventColumns[] = {{"event", "event", 6, Show::number},
                                           {"time", "time", -24, Show::time},
                                           {"level", "level", -7, Show::level},
                                           {"", "text", -200, Show::text}};

inline constexpr Column kStallColumns[] = {{"stall", "stall", 6, Show::number},
                                           {"worker", "worker", 6, Show::number},
                                           {"began", "began", -24, Show::time},
                                           {"length", "length", 10, Show::duration},
                                           {"waited for CPU", "run_delay", 14, Show::duration},
                                           {"switches", "involuntary_switches", 8, Show::number},
                                           {"waits", "voluntary_switches", 6, Show::number},
                                           {"in kernel", "kernel_time", 10, Show::duration},
                                           {"stolen", "steal", 10, Show::duration},
                                           {"interrupts", "interrupts", 10, Show::duration},
                                           {"faults", "minor_faults", 7, Show::number},
                                           {"read", "major_faults", 5, Show::number}};

inline constexpr Column kPortCounterColumns[] = {
    {"device", "device", 6, Show::number}, {"counter", "name", -40, Show::text}, {"", "value", 12, Show::rate}};

struct TableView {
    std::string_view table;
    std::string_view plural;
    const Column* columns;
    std::size_t count;
    std::string_view inside;     ///< the table that Key::enter shows; empty: none
    std::string_view its_field;  ///< the field of that table which names a row of this one
};
template <std::size_t N>
constexpr TableView view(std::string_view table, std::string_view plural, const Column (&columns)[N],
                         std::string_view inside = {}, std::string_view its_field = {}) {
    return {table, plural, columns, N, inside, its_field};
}
inline constexpr TableView kViews[] = {view("worker", "workers", kWorkerColumns, "session", "worker"),
                                       view("session", "sessions", kSessionColumns, "queue_pair", "first_session"),
                                       view("queue_pair", "queue pairs", kQueuePairColumns),
                                       view("device", "devices", kDeviceColumns, "queue_pair", "device"),
                                       view("process", "processes", kProcessColumns, "session", "process"),
                                       view("runtime", "runtime", kRuntimeColumns),
                                       view("event", "events", kEventColumns),
                                       view("stall", "stalls", kStallColumns),
                                       view("port_counter", "counters of ports", kPortCounterColumns)};

inline const TableView& view_of(std::string_view table) {
    return *std::find_if(std::begin(kViews), std::end(kViews),
                         [&](const TableView& each) { return each.table == table; });
}

}  // namespace pollcore::stat
