// The keys of the configuration. For each struct of pollcore/config.hpp there is a function each_field(). It lists the
// keys of the struct, and for each key its member and the rule for its values. The code that reads, checks and prints
// uses these functions, and so do the lists of known keys in messages. So a new key needs one line here. It also needs
// a paragraph in config/pollcored.toml: a test checks this.
//
// each_field() calls visit(key, member, rule) for each key, in the order in which keys are printed. `visit` may fill
// the object while each_field() runs, because the key `kind` comes before the keys that only one kind has.
//
// Thread safety: pure functions.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <type_traits>

#include "config/rules.hpp"
#include "pollcore/config.hpp"

namespace pollcore::config {

struct Key {
    std::string_view name;
    bool required = false;
    bool applies = true;             ///< the visited object has the key
    std::string_view only_for = {};  ///< which objects have the key, in words
    /// If the key is left out, its value depends on this machine's CPUs. So the key has no default value that holds for
    /// all machines.
    bool by_machine = false;
};

constexpr Key required(std::string_view name) {
    return {name, true, true, {}};
}
constexpr Key optional(std::string_view name) {
    return {name, false, true, {}};
}
constexpr Key chosen_by_machine(std::string_view name) {
    return {name, false, true, {}, true};
}
constexpr Key optional_if(bool applies, std::string_view name, std::string_view only_for) {
    return {name, false, applies, only_for};
}

template <class Enum>
using Choice = typename ChoiceRule<Enum>::Choice;

inline constexpr Choice<DeviceConfig::Kind> kDeviceKinds[] = {{"soft", DeviceConfig::Kind::soft},
                                                              {"verbs", DeviceConfig::Kind::verbs}};
inline constexpr Choice<DeviceConfig::Profile> kDeviceProfiles[] = {{"standard", DeviceConfig::Profile::standard},
                                                                    {"rxe", DeviceConfig::Profile::rxe},
                                                                    {"mlx5", DeviceConfig::Profile::mlx5}};
inline constexpr Choice<WakeOn> kWakeOn[] = {{"all", WakeOn::all}, {"solicited", WakeOn::solicited}};
inline constexpr Choice<PollVerbs> kPollVerbs[] = {
    {"auto", PollVerbs::automatic}, {"extended", PollVerbs::extended}, {"plain", PollVerbs::plain}};
inline constexpr Choice<MemoryConfig::Hugepages> kHugepages[] = {{"require", MemoryConfig::Hugepages::require},
                                                                 {"prefer", MemoryConfig::Hugepages::prefer},
                                                                 {"never", MemoryConfig::Hugepages::never}};
inline constexpr Choice<StatisticsConfig::Segment> kSegments[] = {{"auto", StatisticsConfig::Segment::automatic},
                                                                  {"on", StatisticsConfig::Segment::on},
                                                                  {"off", StatisticsConfig::Segment::off}};
inline constexpr Choice<ServiceConfig::Kind> kServiceKinds[] = {{"echo", ServiceConfig::Kind::echo},
                                                                {"memory", ServiceConfig::Kind::memory}};
inline constexpr Choice<FlowControl> kFlowChoices[] = {
#define POLLCORE_ROW(name, NAME, arrival, text) {#name, FlowControl::name},
    POLLCORE_FLOW_CONTROLS(POLLCORE_ROW)
#undef POLLCORE_ROW
};
inline constexpr Choice<LogLevel> kLogLevels[] = {
    {"error", LogLevel::error}, {"warning", LogLevel::warning}, {"info", LogLevel::info}, {"debug", LogLevel::debug}};

// DPDK's EAL counts its memory in megabytes, and takes it in hugepages. EAL would round a size that is no multiple of
// the smallest hugepage.
inline constexpr BytesRule kMemorySize{.min = 16ull << 20, .max = 1ull << 40, .multiple_of = 2ull << 20};
// A verbs message is at most 2^31 bytes.
inline constexpr BytesRule kMessageSize{.min = 1, .max = 1ull << 31};
inline constexpr BytesRule kRegionSize{.min = kCacheLine, .max = 1ull << 40};
inline constexpr BytesRule kRegisteredMax{.min = 4096, .max = 1ull << 48};
inline constexpr BytesRule kUserRegisteredMax{.min = 0, .max = 1ull << 48};
inline constexpr CountRule kBurst{.min = 1, .max = kBurstMax};

template <class Visit>
void each_field(const Config&, const Cpus&, Visit&& visit) {
    visit(optional("qps_max"), &Config::qps_max, CountRule{1, kQpsMax, true});
    visit(optional("share_cores"), &Config::share_cores, BooleanRule{});
    visit(optional("lock_directory"), &Config::lock_directory, DirectoryRule{});
    visit(optional("drain_timeout"), &Config::drain_timeout,
          MillisecondsRule{std::chrono::milliseconds(1), std::chrono::minutes(10)});
    visit(optional("hang_limit"), &Config::hang_limit,
          MillisecondsRule{std::chrono::milliseconds(1), std::chrono::minutes(10)});
    visit(optional("log_level"), &Config::log_level, ChoiceRule<LogLevel>{kLogLevels});
}

template <class Visit>
void each_field(const MemoryConfig&, const Cpus&, Visit&& visit) {
    visit(optional("hugepages"), &MemoryConfig::hugepages, ChoiceRule<MemoryConfig::Hugepages>{kHugepages});
    visit(optional("size"), &MemoryConfig::size, kMemorySize);
}

template <class Visit>
void each_field(const AttachConfig& attach, const Cpus&, Visit&& visit) {
    visit(optional("path"), &AttachConfig::path, SocketPathRule("nobody attaches"));
    const bool any = !attach.path.empty();
    constexpr std::string_view kOnly = "an [attach] with a path";
    visit(optional_if(any, "owner", kOnly), &AttachConfig::owner, AccountRule{AccountKind::user});
    visit(optional_if(any, "group", kOnly), &AttachConfig::group, AccountRule{AccountKind::group});
    visit(optional_if(any, "mode", kOnly), &AttachConfig::mode, ModeRule{});
    visit(optional_if(any, "users", kOnly), &AttachConfig::users, AccountsRule{AccountKind::user});
    visit(optional_if(any, "groups", kOnly), &AttachConfig::groups, AccountsRule{AccountKind::group});
    visit(optional_if(any, "own_memory", kOnly), &AttachConfig::own_memory, OwnMemoryRule{});
    visit(optional_if(any, "clients_max", kOnly), &AttachConfig::clients_max, CountRule{1, kAttachedMax});
    visit(optional_if(any, "sessions_max", kOnly), &AttachConfig::sessions_max, CountRule{1, kSessionsPerWorkerMax});
    visit(optional_if(any, "queue_pairs_max", kOnly), &AttachConfig::queue_pairs_max, CountRule{1, kQpsMax});
    visit(optional_if(any, "work_requests_max", kOnly), &AttachConfig::work_requests_max, CountRule{1, 1ull << 32});
    visit(optional_if(any, "registered_max", kOnly), &AttachConfig::registered_max, kRegisteredMax);
    visit(optional_if(any, "user_clients_max", kOnly), &AttachConfig::user_clients_max, CountRule{0, kAttachedMax});
    visit(optional_if(any, "user_sessions_max", kOnly), &AttachConfig::user_sessions_max,
          CountRule{0, std::uint64_t{kAttachedMax} * kSessionsPerWorkerMax});
    visit(optional_if(any, "user_queue_pairs_max", kOnly), &AttachConfig::user_queue_pairs_max, CountRule{0, kQpsMax});
    visit(optional_if(any, "user_shared_receive_queues_max", kOnly), &AttachConfig::user_shared_receive_queues_max,
          CountRule{0, kSrqsMax});
    visit(optional_if(any, "user_receive_pools_max", kOnly), &AttachConfig::user_receive_pools_max,
          CountRule{0, kReceivePoolsMax});
    visit(optional_if(any, "user_listeners_max", kOnly), &AttachConfig::user_listeners_max,
          CountRule{0, kListenersMax});
    visit(optional_if(any, "user_objects_max", kOnly), &AttachConfig::user_objects_max, CountRule{0, kObjectsMax});
    visit(optional_if(any, "user_registered_max", kOnly), &AttachConfig::user_registered_max, kUserRegisteredMax);
}

template <class Visit>
void each_field(const ControlConfig& control, const Cpus&, Visit&& visit) {
    visit(optional("path"), &ControlConfig::path, SocketPathRule("there is no such socket"));
    visit(optional_if(!control.path.empty(), "group", "a [control] with a path"), &ControlConfig::group,
          AccountRule(AccountKind::group, "nobody's"));
}

template <class Visit>
void each_field(const StatisticsConfig& statistics, const Cpus&, Visit&& visit) {
    visit(optional("segment"), &StatisticsConfig::segment, ChoiceRule<StatisticsConfig::Segment>{kSegments});
    visit(optional("name"), &StatisticsConfig::name, NameRule("the name of the program"));
    visit(optional("group"), &StatisticsConfig::group, AccountRule{AccountKind::group});
    visit(optional("stall_threshold"), &StatisticsConfig::stall_threshold,
          MicrosecondsRule{std::chrono::microseconds(1), std::chrono::minutes(1)});
    visit(
        optional_if(statistics.segment != StatisticsConfig::Segment::off, "telemetry", "a segment that is not \"off\""),
        &StatisticsConfig::telemetry, BooleanRule{});
}

template <class Visit>
void each_field(const DeviceConfig& device, const Cpus&, Visit&& visit) {
    visit(required("name"), &DeviceConfig::name, NameRule());
    visit(required("kind"), &DeviceConfig::kind, ChoiceRule<DeviceConfig::Kind>{kDeviceKinds});
    const bool verbs = device.kind == DeviceConfig::Kind::verbs;
    constexpr std::string_view kOnly = "devices of kind \"verbs\"";
    visit(optional_if(!verbs, "profile", "devices of kind \"soft\""), &DeviceConfig::profile,
          ChoiceRule<DeviceConfig::Profile>{kDeviceProfiles});
    visit(optional_if(verbs, "verbs_name", kOnly), &DeviceConfig::verbs_name, NameRule("the only device there is"));
    visit(optional_if(verbs, "port", kOnly), &DeviceConfig::port, CountRule{1, 255});
    visit(optional_if(verbs, "gid", kOnly), &DeviceConfig::gid, GidRule{});
}

template <class Visit>
void each_field(const WorkerConfig& worker, const Cpus& cpus, Visit&& visit) {
    visit(required("name"), &WorkerConfig::name, NameRule());
    visit(chosen_by_machine("core"), &WorkerConfig::core, CoreRule{cpus});
    visit(chosen_by_machine("idle"), &WorkerConfig::idle, IdleRule{cpus});
    const bool sleeps = worker.idle.has(IdlePolicy::event);
    constexpr std::string_view kOnlySleepers = "workers whose idle has \"event\"";
    visit(optional_if(sleeps, "wake_on", kOnlySleepers), &WorkerConfig::wake_on, ChoiceRule<WakeOn>{kWakeOn});
    visit(optional_if(sleeps, "comp_vector", kOnlySleepers), &WorkerConfig::comp_vector, VectorRule{});
    visit(optional_if(sleeps, "moderation_count", kOnlySleepers), &WorkerConfig::moderation_count, CountRule{1, 65535});
    visit(optional_if(sleeps, "moderation_period", kOnlySleepers), &WorkerConfig::moderation_period,
          MicrosecondsRule{std::chrono::microseconds(0), std::chrono::microseconds(65535)});
    visit(optional("submit_burst"), &WorkerConfig::submit_burst, kBurst);
    visit(optional("complete_burst"), &WorkerConfig::complete_burst, kBurst);
    visit(optional("qp_burst"), &WorkerConfig::qp_burst, kBurst);
    visit(optional("cq_depth"), &WorkerConfig::cq_depth, CountRule{kCqDepthMin, kCqDepthMax, true});
    visit(optional("poll"), &WorkerConfig::poll, ChoiceRule<PollVerbs>{kPollVerbs});
}

template <class Visit>
void each_field(const ServiceConfig& service, const Cpus&, Visit&& visit) {
    visit(required("name"), &ServiceConfig::name, NameRule());
    visit(required("kind"), &ServiceConfig::kind, ChoiceRule<ServiceConfig::Kind>{kServiceKinds});
    const bool echo = service.kind == ServiceConfig::Kind::echo;
    constexpr std::string_view kOnlyEcho = "services of kind \"echo\"";
    constexpr std::string_view kOnlyMemory = "services of kind \"memory\"";
    visit(required("device"), &ServiceConfig::device, NameRule());
    visit(required("worker"), &ServiceConfig::worker, NameRule());
    visit(required("address"), &ServiceConfig::address, AddressRule{});
    visit(optional_if(echo, "message_size_max", kOnlyEcho), &ServiceConfig::message_size_max, kMessageSize);
    visit(optional_if(echo, "depth", kOnlyEcho), &ServiceConfig::depth, CountRule{1, kQueueDepthMax});
    visit(optional_if(echo, "flow", kOnlyEcho), &ServiceConfig::flow, ChoiceRule<FlowControl>{kFlowChoices});
    visit(optional_if(!echo, "size", kOnlyMemory), &ServiceConfig::size, kRegionSize);
    visit(optional("connections_max"), &ServiceConfig::connections_max, CountRule{1, kQpsMax});
}

/// Calls visit.table(name, object) and visit.list(name, objects) for the parts of a configuration.
template <class AnyConfig, class Visit>
void each_section(AnyConfig& config, Visit&& visit) {
    visit.table("runtime", config);
    visit.table("memory", config.memory);
    visit.table("attach", config.attach);
    visit.table("control", config.control);
    visit.table("statistics", config.statistics);
    visit.list("device", config.devices);
    visit.list("worker", config.workers);
    visit.list("service", config.services);
}

/// Converts a struct's member to the type that its rule works with.
template <class Rule, class Field>
typename Rule::Value value_of(const Field& field) {
    if constexpr (std::is_same_v<Field, std::filesystem::path>) {
        return field.string();
    } else {
        return static_cast<typename Rule::Value>(field);
    }
}

/// Lists the keys of an object, as "name, kind, ...": all keys if `all` is true, otherwise only the keys that apply to
/// `object`.
template <class Object>
std::string key_list(const Object& object, bool all) {
    const Cpus none;
    std::string out;
    each_field(object, none, [&](const Key& key, auto, const auto&) {
        if (all || key.applies) {
            out += out.empty() ? "" : ", ";
            out += key.name;
        }
    });
    return out;
}

}  // namespace pollcore::config
