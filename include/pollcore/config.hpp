// The typed configuration of a runtime, and reading it from TOML.
//
// Every field has the meaning that config/pollcored.toml documents under the same key. What is wrong is
// refused, never rounded: by load_config with file, line, key and value, by validate with the field's path.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "pollcore/error.hpp"
#include "pollcore/export.h"
#include "pollcore/flow_control.hpp"
#include "pollcore/limits.hpp"

namespace pollcore {

struct DeviceConfig {
    enum class Kind { soft, verbs };
    /// Whose habits a software device takes on where the verbs leave room for some.
    enum class Profile {
        standard,  ///< the specification's, nobody's
        rxe,       ///< the kernel's Soft-RoCE
        mlx5,      ///< rdma-core's provider for ConnectX
    };
    std::string name;  ///< how the rest of the configuration calls it
    Kind kind = Kind::soft;
    Profile profile = Profile::standard;  ///< soft
    std::string verbs_name;               ///< verbs: as in ibv_devices(1); empty: the only one
    std::uint8_t port = 1;
    std::string gid;  ///< address whose GID is used to connect by exchanged information; empty: the first RoCE v2

    bool operator==(const DeviceConfig&) const = default;
};

/// What a worker does after a step that found nothing to do.
enum class IdlePolicy {
    spin,     ///< the next step at once
    pause,    ///< the CPU's pause instruction between steps
    monitor,  ///< the core rests for about a microsecond (TPAUSE), or, while nothing but one session's next request can
              ///< come, until that is written (UMWAIT). x86 CPUs with WAITPKG
    yield,    ///< gives the core away; for cores that are shared
    event,    ///< sleeps until a completion, a session or the control side wakes it
};
inline constexpr std::size_t kIdlePolicies = 5;

/// The policy, and after how long without work the next rung follows.
struct IdleRung {
    IdlePolicy policy = IdlePolicy::spin;
    std::chrono::nanoseconds time{0};  ///< 0: this is the last

    bool operator==(const IdleRung&) const = default;
};

/// How a worker waits: the first rung follows work, each one gives way to the next. At least one, each policy at most
/// once; "event" can only be the last.
struct IdleLadder {
    std::vector<IdleRung> rungs;

    // Either way of writing one down: `idle = IdlePolicy::pause`, `idle = {{IdlePolicy::spin, 20us},
    // {IdlePolicy::event}}`.
    IdleLadder(IdlePolicy only = IdlePolicy::spin) : rungs{{only, std::chrono::nanoseconds(0)}} {}  // NOLINT: implicit
    IdleLadder(std::initializer_list<IdleRung> all) : rungs(all) {}

    [[nodiscard]] bool has(IdlePolicy policy) const noexcept {
        for (const IdleRung& rung : rungs) {
            if (rung.policy == policy) {
                return true;
            }
        }
        return false;
    }
    /// "spin 20us, pause 200us, event"
    [[nodiscard]] POLLCORE_API std::string describe() const;

    bool operator==(const IdleLadder&) const = default;
};

/// Which completions wake a worker that sleeps.
enum class WakeOn {
    all,
    /// Those of messages whose sender asked for it (kSolicited), and failures. The rest waits until something wakes the
    /// worker, the completions of its own sends too: an application that sleeps for one of those may do so for long.
    solicited,
};

/// By which verbs a worker polls its CQs.
enum class PollVerbs {
    automatic,  ///< "auto": what takes fewer cycles in bursts, by provider; plain where nobody has measured it. The log
                ///< says which, and why
    extended,   ///< ibv_start_poll and its kin, on which a provider can do without its lock
    plain,      ///< ibv_poll_cq
};

struct WorkerConfig {
    std::string name;
    std::uint32_t core =
        0;  ///< CPU number; an lcore of this number is the worker's own. A file may leave it to the machine
    IdleLadder idle;
    WakeOn wake_on = WakeOn::all;
    /// Of its CQs, on every device; nothing: spread over those that a device has.
    std::optional<std::uint32_t> comp_vector;
    /// A sleeping worker is woken by so many completions, or when the period is over. ibv_modify_cq(3).
    std::uint32_t moderation_count = 1;
    std::chrono::microseconds moderation_period{0};  ///< 0: at once
    std::uint32_t submit_burst = kBurstDefault;      ///< slots taken from one session in one step
    std::uint32_t complete_burst = kBurstDefault;    ///< completions taken from one CQ in one step
    std::uint32_t qp_burst = kBurstDefault;          ///< work requests posted to one QP in one step
    std::uint32_t cq_depth = 4096;  ///< entries of a CQ that the worker opens, beside an SRQ's depth; a power of two
    PollVerbs poll = PollVerbs::automatic;  ///< of a CQ for as long as it lives; with time stamps always extended

    bool operator==(const WorkerConfig&) const = default;
};

struct MemoryConfig {
    enum class Hugepages { require, prefer, never };
    Hugepages hugepages = Hugepages::prefer;
    std::uint64_t size = 64ull << 20;  ///< bytes that EAL may take at most, over all sockets

    bool operator==(const MemoryConfig&) const = default;
};

struct ServiceConfig {
    enum class Kind { echo, memory };
    Kind kind = Kind::echo;
    std::string name;
    std::string device;
    std::string worker;
    std::string address;                    ///< where it listens: see Context::listen
    std::uint64_t message_size_max = 4096;  ///< echo: bytes
    std::uint32_t depth = 64;               ///< echo: receives kept posted per connection
    FlowControl flow = FlowControl::off;    ///< echo: of its connections, and so of its peers'
    std::uint64_t size = 1ull << 20;        ///< memory: bytes of the region
    std::uint32_t connections_max = 16;

    /// echo: bytes from one of its buffers to the next. They share no cache line, since the device writes one while
    /// another is being sent.
    [[nodiscard]] std::uint64_t buffer_stride() const noexcept {
        return (message_size_max + kCacheLine - 1) / kCacheLine * kCacheLine;
    }
    /// echo: messages that may be in flight on all its connections.
    [[nodiscard]] std::uint64_t messages_max() const noexcept { return std::uint64_t{depth} * connections_max; }
    /// Registered memory that the service takes, in bytes. With every field at its largest it is 2^63.
    [[nodiscard]] std::uint64_t memory_bytes() const noexcept {
        return kind == Kind::memory ? size : buffer_stride() * messages_max();
    }

    bool operator==(const ServiceConfig&) const = default;
};

/// Where other processes attach (pollcore/attach.hpp), and which may.
struct AttachConfig {
    std::filesystem::path path;       ///< of the socket; empty: nobody may
    std::string owner;                ///< of the socket: a user; empty: the daemon's
    std::string group;                ///< empty: the daemon's
    std::uint32_t mode = 0660;        ///< permissions of the socket
    std::vector<std::string> users;   ///< who may attach, of those that the socket's permissions let through: these,
    std::vector<std::string> groups;  ///< and members of these; both empty: all
    std::uint32_t clients_max = 64;
    // Of each.
    std::uint32_t sessions_max = 16;
    std::uint32_t queue_pairs_max = 256;
    std::uint64_t work_requests_max = 65536;
    std::uint64_t registered_max = 1ull << 30;  ///< bytes, its rings among them
    // Of all processes of one user together. 0: half of what there is.
    std::uint32_t user_clients_max = 0;
    std::uint32_t user_sessions_max = 0;
    std::uint32_t user_queue_pairs_max = 0;
    std::uint32_t user_shared_receive_queues_max = 0;
    std::uint32_t user_receive_pools_max = 0;
    std::uint32_t user_listeners_max = 0;
    std::uint32_t user_objects_max = 0;  ///< memory regions; and memory windows, address handles, protection domains
    std::uint64_t user_registered_max = 0;

    bool operator==(const AttachConfig&) const = default;
};

enum class LogLevel { error, warning, info, debug };

struct Config {
    std::vector<DeviceConfig> devices;
    std::vector<WorkerConfig> workers;
    std::vector<ServiceConfig> services;
    MemoryConfig memory;
    AttachConfig attach;
    LogLevel log_level = LogLevel::info;
    std::uint32_t qps_max = kQpsDefault;            ///< of the whole runtime; a power of two
    bool share_cores = false;                       ///< no locks: others may have workers on these cores, too
    std::filesystem::path lock_directory;           ///< holds a lock file per worker core; empty: the user's own
    std::chrono::milliseconds drain_timeout{2000};  ///< how long a stop waits for work in flight
    /// How long a call waits while the control thread does not get to it: then it fails with ETIMEDOUT. In the daemon
    /// also how long a thread other than a worker may hang before the watchdog is not fed any more.
    std::chrono::milliseconds hang_limit{60'000};

    bool operator==(const Config&) const = default;
};

/// A configuration that was refused. what() is one line: "FILE:LINE: KEY = VALUE: why; what is accepted".
class POLLCORE_API ConfigError : public Error {
public:
    explicit ConfigError(const std::string& what) : Error(std::errc::invalid_argument, what), message_(what) {}
    /// The line alone: std::system_error would add ": Invalid argument" to it.
    [[nodiscard]] const char* what() const noexcept override { return message_.what(); }

private:
    std::runtime_error message_;  // a string whose copy cannot throw, as an exception's must not
};

/// Reads and checks a file. Throws ConfigError at the first thing that is wrong.
[[nodiscard]] POLLCORE_API Config load_config(const std::filesystem::path& file);
/// The same from text; `name` stands for the file in messages.
[[nodiscard]] POLLCORE_API Config parse_config(std::string_view text, const std::string& name);
/// Checks a configuration that was built in code: names, references, ranges, this machine's cores.
POLLCORE_API void validate(const Config& config);
/// The whole effective configuration as TOML that load_config reads back; what stands at its default is
/// marked by a comment "# default". A worker's core and idle are not, which a file may leave to the machine.
[[nodiscard]] POLLCORE_API std::string print_config(const Config& config);

}  // namespace pollcore
