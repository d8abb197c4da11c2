// Lets other processes attach to a runtime (attach.hpp): pollcored does, and any program that embeds a runtime can.
//
// An attached process has sessions, queue pairs and memory of its own, within its quota. It cannot name another
// process's objects, and the workers check all that it writes into the rings that it shares with them. A process that
// breaks the rules, dies or hangs up is taken down: its queue pairs go to error and are drained, and its memory is
// released. The log says why. Other processes do not notice.
//
// Thread safety: any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pollcore/config.hpp"
#include "pollcore/export.h"
#include "pollcore/health.hpp"
#include "pollcore/runtime.hpp"

namespace pollcore {

/// Numbers of processes since the server began.
struct AttachCounts {
    std::uint64_t attached = 0;
    std::uint64_t refused = 0;   ///< not allowed, of another version, or one too many
    std::uint64_t evicted = 0;   ///< taken down for what they wrote
    std::uint64_t detached = 0;  ///< left in order
    std::uint64_t died = 0;      ///< died or hung up
    /// Not all of their requests in flight were flushed in time; the runtime completed the others.
    std::uint64_t cut_short = 0;
    std::uint32_t now = 0;                          ///< attached now, or being taken down
    std::chrono::microseconds longest_clean_up{0};  ///< from a process's death until nothing of it was left
};

/// Serves the socket at which processes attach to a runtime.
class POLLCORE_API AttachServer {
public:
    /// Makes the socket config.path and listens there. It replaces what a killed daemon of this user has left there,
    /// and makes the file anew when somebody removes it later. The runtime must outlive this object. Throws Error:
    /// EADDRINUSE when another process may have its socket there.
    AttachServer(Runtime& runtime, const AttachConfig& config);
    ~AttachServer();
    AttachServer(const AttachServer&) = delete;
    AttachServer& operator=(const AttachServer&) = delete;

    /// Lets nobody attach any more. Tells the attached processes (EventType::stopping), which have the time `drain` to
    /// finish and detach; then takes them down, each with its last completions. False when not all requests were
    /// flushed in time. The destructor does this with the runtime's drain_timeout.
    bool stop(std::chrono::milliseconds drain);

    /// Changes who may attach, and the limits of each process and each user; path, owner, group and mode stay. This
    /// holds for attached processes, too: a process keeps what it has, and one that may not be attached any more is
    /// ended. Throws Error(EINVAL), and changes nothing, for a user or group that this machine does not know.
    void configure(const AttachConfig& config);
    [[nodiscard]] AttachCounts counts() const;
    /// Whether the thread that lets processes attach makes progress. Does not wait for that thread. Runtime::health()
    /// has the other threads.
    [[nodiscard]] ThreadHealth health() const;

private:
    class Server;
    std::unique_ptr<Server> server_;
};

}  // namespace pollcore
