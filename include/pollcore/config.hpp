// The typed configuration of a runtime, and the functions that read it from TOML.
//
// config/pollcored.toml documents every field under the same key. A wrong value is refused, never rounded. The error
// names file, line, key and value if it comes from load_config, and the field's path if it comes from validate.
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
#include "pollcore/logging.hpp"

namespace pollcore {

/// A device to open, as `[[device]]` of the file.
struct DeviceConfig {
    enum class Kind { soft, verbs };
    /// The provider that a software device imitates where the verbs leave a choice.
    enum class Profile {
        standard,  ///< no provider: the device does only what the specification says
        rxe,       ///< the kernel's Soft-RoCE
        mlx5,      ///< rdma-core's provider for ConnectX
    };
    std::string name;  ///< the rest of the configuration refers to the device by this name
    Kind kind = Kind::soft;
    Profile profile = Profile::standard;  ///< soft only
    std::string verbs_name;               ///< verbs only: name in ibv_devices(1); empty: the only device
    std::uint8_t port = 1;
    /// Address of the GID for connections by exchanged information (QpInfo). Empty means the first RoCE v2 GID.
    std::string gid;

    bool operator==(const DeviceConfig&) const = default;
};

/// The behaviour of a worker after a step that found nothing to do.
enum class IdlePolicy {
    spin,   ///< begins the next step at once
    pause,  ///< executes the CPU's pause instruction between steps
    /// The core rests for about a microsecond (TPAUSE). While only the next request of one session can bring work, the
    /// core rests until that request is written, or for 20 us (UMWAIT). Needs an x86 CPU with WAITPKG (D34).
    monitor,
    yield,  ///< lets other threads have the core; for shared cores
    event,  ///< sleeps until a completion, a session or the control side wakes the worker
};
inline constexpr std::size_t kIdlePolicies = 5;

/// A policy, and the time without work after which the next rung follows.
struct IdleRung {
    IdlePolicy policy = IdlePolicy::spin;
    std::chrono::nanoseconds time{0};  ///< 0 means that this is the last rung

    bool operator==(const IdleRung&) const = default;
};

/// How a worker waits for work. After work the worker is on the first rung. When the time of a rung is over, the worker
/// goes to the next rung. There is at least one rung. Each policy occurs at most once, and "event" can only be the
/// last.
struct IdleLadder {
    std::vector<IdleRung> rungs;

    // Allows `idle = IdlePolicy::pause` and `idle = {{IdlePolicy::spin, 20us}, {IdlePolicy::event}}`.
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

/// The completions that wake a sleeping worker.
enum class WakeOn {
    all,
    /// Only failures, and completions of messages whose sender set kSolicited. All other completions, such as those of
    /// the worker's own sends, wait until something else wakes the worker. An application that sleeps until such a
    /// completion comes may sleep for a long time.
    solicited,
};

/// The verbs by which a worker polls its CQs (D35).
enum class PollVerbs {
    /// "auto" in the file. The verbs that take fewer cycles for bursts with the device's provider, or `plain` if that
    /// was not measured. The log names the chosen verbs and the reason.
    automatic,
    extended,  ///< ibv_start_poll and the calls that belong to it; with them a provider needs no lock
    plain,     ///< ibv_poll_cq
};

/// A worker: its core, and how it polls and waits, as `[[worker]]` of the file.
struct WorkerConfig {
    std::string name;
    /// CPU number. EAL's lcore of this number belongs to the worker. A file may leave the choice to the machine.
    std::uint32_t core = 0;
    IdleLadder idle;
    WakeOn wake_on = WakeOn::all;
    /// Completion vector of the worker's CQs, on every device. Without a value, the CQs are spread over the device's
    /// vectors.
    std::optional<std::uint32_t> comp_vector;
    /// A sleeping worker wakes after this many completions, or when moderation_period is over (ibv_modify_cq(3)).
    std::uint32_t moderation_count = 1;
    std::chrono::microseconds moderation_period{0};  ///< 0: a completion wakes the worker at once
    std::uint32_t submit_burst = kBurstDefault;      ///< slots taken from one session in one step
    /// Completions taken from one CQ in one step, unless the step has taken more requests: then so many more.
    std::uint32_t complete_burst = kBurstDefault;
    std::uint32_t qp_burst = kBurstDefault;  ///< work requests posted to one QP in one step
    /// Entries of a CQ that the worker opens, a power of two. If the CQ is for a queue pair of a shared receive queue,
    /// the depth of that queue is added (D21).
    std::uint32_t cq_depth = 4096;
    /// A CQ is polled by the same verbs for its whole life (D36). A CQ with time stamps is polled by `extended` (D37).
    PollVerbs poll = PollVerbs::automatic;

    bool operator==(const WorkerConfig&) const = default;
};

/// The memory of the runtime itself, as `[memory]` of the file.
struct MemoryConfig {
    enum class Hugepages { require, prefer, never };
    Hugepages hugepages = Hugepages::prefer;
    std::uint64_t size = 64ull << 20;  ///< bytes that EAL may take at most, on all CPU sockets together

    bool operator==(const MemoryConfig&) const = default;
};

/// A built-in service of pollcored, as `[[service]]` of the file.
struct ServiceConfig {
    enum class Kind { echo, memory };
    Kind kind = Kind::echo;
    std::string name;
    std::string device;
    std::string worker;
    std::string address;                    ///< address of the service's listener: see Context::listen
    std::uint64_t message_size_max = 4096;  ///< echo: bytes
    std::uint32_t depth = 64;               ///< echo: receives kept posted per connection
    FlowControl flow = FlowControl::off;    ///< echo: flow control of the connections; the peers must use the same
    std::uint64_t size = 1ull << 20;        ///< memory: bytes of the region
    std::uint32_t connections_max = 16;

    /// echo: bytes from the beginning of a buffer to the beginning of the next. Buffers share no cache line, because
    /// the device writes one buffer while it sends another.
    [[nodiscard]] std::uint64_t buffer_stride() const noexcept {
        return (message_size_max + kCacheLine - 1) / kCacheLine * kCacheLine;
    }
    /// echo: messages that may be in flight on all connections together.
    [[nodiscard]] std::uint64_t messages_max() const noexcept { return std::uint64_t{depth} * connections_max; }
    /// Registered memory of the service, in bytes. Cannot overflow: the largest fields give 2^63.
    [[nodiscard]] std::uint64_t memory_bytes() const noexcept {
        return kind == Kind::memory ? size : buffer_stride() * messages_max();
    }

    bool operator==(const ServiceConfig&) const = default;
};

/// The socket at which other processes attach (pollcore/attach.hpp), and the processes that may attach.
struct AttachConfig {
    std::filesystem::path path;  ///< path of the socket; empty: no process may attach
    std::string owner;           ///< user who owns the socket; empty: the daemon's user
    std::string group;           ///< group of the socket; empty: the daemon's group
    std::uint32_t mode = 0660;   ///< permissions of the socket
    /// Only these users and the members of `groups` may attach, and only if the socket's permissions allow it. If both
    /// are empty, the permissions alone decide.
    std::vector<std::string> users;
    std::vector<std::string> groups;  ///< see users
    /// Which of them may register memory of their own at verbs devices (AttachOptions::own_memory).
    struct OwnMemory {
        bool all = false;
        std::vector<std::string> users;  ///< if `all` is false

        bool operator==(const OwnMemory&) const = default;
    };
    OwnMemory own_memory;
    std::uint32_t clients_max = 64;
    // Limits of each process.
    std::uint32_t sessions_max = 64;
    std::uint32_t queue_pairs_max = 256;
    std::uint64_t work_requests_max = 65536;
    std::uint64_t registered_max = 1ull << 30;  ///< bytes, rings included
    // Limits of all processes of one user together. 0 means half of what all processes may have together and, for
    // user_registered_max, half of the machine's memory.
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

/// The socket at which pollctl gives pollcored commands. Root and the daemon's user may always connect.
struct ControlConfig {
    std::filesystem::path path;  ///< path of the socket; empty: there is none
    std::string group;           ///< whose members may give commands, too; empty: nobody's

    bool operator==(const ControlConfig&) const = default;
};

/// The statistics segment (statistics.hpp).
struct StatisticsConfig {
    enum class Segment {
        automatic,  ///< pollcored has one, a program that embeds a runtime does not
        on,
        off,
    };
    Segment segment = Segment::automatic;
    std::string name;   ///< by which pollstat shows the runtime; empty: the name of its program
    std::string group;  ///< whose members may read the segment; empty: the group of the process
    /// A worker's turn that takes longer is a stall: it is counted, and the log says what happened meanwhile.
    std::chrono::microseconds stall_threshold{1000};
    /// DPDK's telemetry socket is open, and has the commands /pollcore/... Only the first runtime of a process decides,
    /// because it starts EAL.
    bool telemetry = false;

    bool operator==(const StatisticsConfig&) const = default;
};

/// The configuration of a runtime. It is read from a TOML file (config/pollcored.toml), or filled in by a program.
struct Config {
    std::vector<DeviceConfig> devices;
    std::vector<WorkerConfig> workers;
    std::vector<ServiceConfig> services;
    MemoryConfig memory;
    AttachConfig attach;
    ControlConfig control;
    StatisticsConfig statistics;
    LogLevel log_level = LogLevel::info;
    std::uint32_t qps_max = kQpsDefault;  ///< queue pairs of the whole runtime; a power of two
    bool share_cores = false;             ///< lock no worker cores: other runtimes may have workers on these cores, too
    std::filesystem::path lock_directory;  ///< has a lock file for each worker core; empty: the user's own directory
    std::chrono::milliseconds drain_timeout{2000};  ///< how long a stop waits for requests in flight
    /// A call fails with ETIMEDOUT if the control thread has not begun the call within this time. In the daemon, a
    /// thread other than a worker may also hang for this time before the daemon stops feeding the watchdog.
    std::chrono::milliseconds hang_limit{60'000};

    bool operator==(const Config&) const = default;
};

/// Reports a configuration that was refused. what() is one line: "FILE:LINE: KEY = VALUE: why; what is accepted".
class POLLCORE_API ConfigError : public Error {
public:
    explicit ConfigError(const std::string& what) : Error(std::errc::invalid_argument, what), message_(what) {}
    /// Returns the line alone. The function of std::system_error would add ": Invalid argument".
    [[nodiscard]] const char* what() const noexcept override { return message_.what(); }

private:
    std::runtime_error message_;  // holds the text, because copying an exception must not throw
};

/// Reads and checks a file. Throws ConfigError at the first fault.
[[nodiscard]] POLLCORE_API Config load_config(const std::filesystem::path& file);
/// Reads and checks a configuration given as text; `name` stands for the file in messages. Throws ConfigError.
[[nodiscard]] POLLCORE_API Config parse_config(std::string_view text, const std::string& name);
/// Checks a configuration that was built in code: names, references, ranges, this machine's cores. Throws ConfigError.
POLLCORE_API void validate(const Config& config);
/// Returns the effective configuration as TOML that load_config can read. A value that equals its default has the
/// comment "# default". A worker's core and idle have no such comment, because a file may leave them to the machine.
[[nodiscard]] POLLCORE_API std::string print_config(const Config& config);

}  // namespace pollcore
