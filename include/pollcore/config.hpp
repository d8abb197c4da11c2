// The typed configuration of a runtime, and reading it from TOML.
//
// Every field has the meaning that config/pollcored.toml documents under the same key. A wrong value is refused, never
// rounded: load_config names file, line, key and value; validate names the field's path.
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

/// A device to open, as `[[device]]` of the file.
struct DeviceConfig {
    enum class Kind { soft, verbs };
    /// Which provider a software device imitates where the verbs leave a choice.
    enum class Profile {
        standard,  ///< none: only what the specification says
        rxe,       ///< the kernel's Soft-RoCE
        mlx5,      ///< rdma-core's provider for ConnectX
    };
    std::string name;  ///< the rest of the configuration refers to it by this name
    Kind kind = Kind::soft;
    Profile profile = Profile::standard;  ///< soft only
    std::string verbs_name;               ///< verbs: as in ibv_devices(1); empty: the only one
    std::uint8_t port = 1;
    std::string gid;  ///< address whose GID is used to connect by exchanged information; empty: the first RoCE v2 GID

    bool operator==(const DeviceConfig&) const = default;
};

/// What a worker does after a step that found nothing to do.
enum class IdlePolicy {
    spin,   ///< the next step at once
    pause,  ///< the CPU's pause instruction between steps
    /// The core rests for about a microsecond (TPAUSE), or, while only one session's next request can bring work, until
    /// that is written (UMWAIT). x86 CPUs with WAITPKG (D34).
    monitor,
    yield,  ///< lets other threads have the core; for shared cores
    event,  ///< sleeps until a completion, a session or the control side wakes it
};
inline constexpr std::size_t kIdlePolicies = 5;

/// A policy, and how long without work until the next rung follows.
struct IdleRung {
    IdlePolicy policy = IdlePolicy::spin;
    std::chrono::nanoseconds time{0};  ///< 0: this is the last

    bool operator==(const IdleRung&) const = default;
};

/// How a worker waits. After work comes the first rung, and after each rung's time the next one. There is at least one
/// rung, and each policy occurs at most once; "event" can only be the last.
struct IdleLadder {
    std::vector<IdleRung> rungs;

    // Both forms work: `idle = IdlePolicy::pause`, `idle = {{IdlePolicy::spin, 20us}, {IdlePolicy::event}}`.
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
    /// The rungs as text, such as "spin 20us, pause 200us, event".
    [[nodiscard]] POLLCORE_API std::string describe() const;

    bool operator==(const IdleLadder&) const = default;
};

/// Which completions wake a worker that sleeps.
enum class WakeOn {
    all,
    /// Completions of messages whose sender asked for it (kSolicited), and failures. All others, those of the worker's
    /// own sends included, wait until something else wakes the worker: an application that sleeps for one of them may
    /// sleep for long.
    solicited,
};

/// The verbs by which a worker polls its CQs (D35).
enum class PollVerbs {
    automatic,  ///< "auto": the verbs that take fewer cycles in bursts, by provider; plain if that was not measured.
                ///< The log says which, and why
    extended,   ///< ibv_start_poll and its kin, which let a provider do without its lock
    plain,      ///< ibv_poll_cq
};

/// A worker: its core, and how it polls and waits, as `[[worker]]` of the file.
struct WorkerConfig {
    std::string name;
    /// CPU number; an lcore of this number is the worker's own. A file may leave it to the machine.
    std::uint32_t core = 0;
    IdleLadder idle;
    WakeOn wake_on = WakeOn::all;
    /// Completion vector of its CQs, on every device. Nothing: its CQs are spread over a device's vectors.
    std::optional<std::uint32_t> comp_vector;
    /// A sleeping worker wakes after this many completions, or when moderation_period is over (ibv_modify_cq(3)).
    std::uint32_t moderation_count = 1;
    std::chrono::microseconds moderation_period{0};  ///< 0: at once
    std::uint32_t submit_burst = kBurstDefault;      ///< slots taken from one session in one step
    std::uint32_t complete_burst = kBurstDefault;    ///< completions taken from one CQ in one step
    std::uint32_t qp_burst = kBurstDefault;          ///< work requests posted to one QP in one step
    /// Entries of a CQ that the worker opens, a power of two; an SRQ's depth is added (D21).
    std::uint32_t cq_depth = 4096;
    PollVerbs poll = PollVerbs::automatic;  ///< for a CQ's whole life (D36); extended if it has time stamps (D37)

    bool operator==(const WorkerConfig&) const = default;
};

/// The memory of the runtime itself, as `[memory]` of the file.
struct MemoryConfig {
    enum class Hugepages { require, prefer, never };
    Hugepages hugepages = Hugepages::prefer;
    std::uint64_t size = 64ull << 20;  ///< bytes that EAL may take at most, over all sockets

    bool operator==(const MemoryConfig&) const = default;
};

/// A built-in service of pollcored, as `[[service]]` of the file.
struct ServiceConfig {
    enum class Kind { echo, memory };
    Kind kind = Kind::echo;
    std::string name;
    std::string device;
    std::string worker;
    std::string address;                    ///< where it listens: see Context::listen
    std::uint64_t message_size_max = 4096;  ///< echo: bytes
    std::uint32_t depth = 64;               ///< echo: receives kept posted per connection
    FlowControl flow = FlowControl::off;    ///< echo: of its connections, and hence of its peers
    std::uint64_t size = 1ull << 20;        ///< memory: bytes of the region
    std::uint32_t connections_max = 16;

    /// echo: bytes from one of its buffers to the next. Buffers share no cache line, since the device writes one while
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
    std::filesystem::path path;  ///< path of the socket; empty: nobody may attach
    std::string owner;           ///< user who owns the socket; empty: the daemon's
    std::string group;           ///< group of the socket; empty: the daemon's
    std::uint32_t mode = 0660;   ///< permissions of the socket
    /// Only these users and the members of `groups` may attach, and only if the socket's permissions allow it. If both
    /// are empty, the permissions alone decide.
    std::vector<std::string> users;
    std::vector<std::string> groups;  ///< see users
    std::uint32_t clients_max = 64;
    // Limits of each process.
    std::uint32_t sessions_max = 16;
    std::uint32_t queue_pairs_max = 256;
    std::uint64_t work_requests_max = 65536;
    std::uint64_t registered_max = 1ull << 30;  ///< bytes, rings included
    // Limits of all processes of one user together. 0: half of the runtime's own limit.
    std::uint32_t user_clients_max = 0;
    std::uint32_t user_sessions_max = 0;
    std::uint32_t user_queue_pairs_max = 0;
    std::uint32_t user_shared_receive_queues_max = 0;
    std::uint32_t user_receive_pools_max = 0;
    std::uint32_t user_listeners_max = 0;
    /// Objects of each kind: memory regions, memory windows, address handles, protection domains.
    std::uint32_t user_objects_max = 0;
    std::uint64_t user_registered_max = 0;

    bool operator==(const AttachConfig&) const = default;
};

enum class LogLevel { error, warning, info, debug };

/// The configuration of a runtime: what a TOML file says (config/pollcored.toml), or what a program fills in.
struct Config {
    std::vector<DeviceConfig> devices;
    std::vector<WorkerConfig> workers;
    std::vector<ServiceConfig> services;
    MemoryConfig memory;
    AttachConfig attach;
    LogLevel log_level = LogLevel::info;
    std::uint32_t qps_max = kQpsDefault;   ///< queue pairs of the whole runtime; a power of two
    bool share_cores = false;              ///< take no locks: other runtimes may have workers on these cores, too
    std::filesystem::path lock_directory;  ///< holds a lock file per worker core; empty: the user's own
    std::chrono::milliseconds drain_timeout{2000};  ///< how long a stop waits for work in flight
    /// How long a call waits for the control thread to begin it; then it fails with ETIMEDOUT. In the daemon, also how
    /// long a thread other than a worker may hang before the daemon stops feeding the watchdog.
    std::chrono::milliseconds hang_limit{60'000};

    bool operator==(const Config&) const = default;
};

/// A configuration that was refused. what() is one line: "FILE:LINE: KEY = VALUE: why; what is accepted".
class POLLCORE_API ConfigError : public Error {
public:
    explicit ConfigError(const std::string& what) : Error(std::errc::invalid_argument, what), message_(what) {}
    /// Only the line: std::system_error would add ": Invalid argument" to it.
    [[nodiscard]] const char* what() const noexcept override { return message_.what(); }

private:
    std::runtime_error message_;  // a string whose copy cannot throw, as an exception's must not
};

/// Reads and checks a file. Throws ConfigError at the first thing that is wrong.
[[nodiscard]] POLLCORE_API Config load_config(const std::filesystem::path& file);
/// Reads and checks a configuration given as text; `name` stands for the file in messages. Throws ConfigError.
[[nodiscard]] POLLCORE_API Config parse_config(std::string_view text, const std::string& name);
/// Checks a configuration that was built in code: names, references, ranges, this machine's cores. Throws ConfigError.
POLLCORE_API void validate(const Config& config);
/// The whole effective configuration as TOML that load_config reads back; a value at its default is marked by a comment
/// "# default", except a worker's core and idle, which a file may leave to the machine.
[[nodiscard]] POLLCORE_API std::string print_config(const Config& config);

}  // namespace pollcore
