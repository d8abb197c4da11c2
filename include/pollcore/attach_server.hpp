// Lets other processes attach to a runtime (attach.hpp). pollcored uses AttachServer, and any program that embeds a
// runtime can use it, too.
//
// An attached process has its own sessions, queue pairs and memory, within its quota. It cannot name objects of another
// process. The workers check everything that the process writes into the shared rings. A process that breaks the rules,
// dies or hangs up is taken down: its queue pairs go to error and are drained, and its memory is released. The log has
// the reason. Other processes are not affected.
//
// Thread safety: any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pollcore/config.hpp"
#include "pollcore/export.h"
#include "pollcore/health.hpp"
#include "pollcore/runtime.hpp"

namespace pollcore {

/// Counts of processes since the server started.
struct AttachCounts {
    std::uint64_t attached = 0;
    std::uint64_t refused = 0;   ///< processes that were not allowed, had another version, or were too many
    std::uint64_t evicted = 0;   ///< processes that were ended: they broke the rules, or may not attach any more
    std::uint64_t detached = 0;  ///< processes that detached by themselves
    std::uint64_t died = 0;      ///< processes that died or hung up
    /// Processes whose requests in flight were not all flushed in time. The runtime completed the remaining requests.
    std::uint64_t cut_short = 0;
    std::uint32_t now = 0;           ///< processes that are attached or being taken down now
    std::uint64_t disconnected = 0;  ///< processes that disconnect() ended
    /// Longest time from the death or eviction of a process until all its objects were released.
    std::chrono::microseconds longest_clean_up{0};
};

/// How much an attached process holds of one kind of thing, and how much it and its user may hold.
struct Holding {
    std::string_view what;  ///< such as "queue_pairs" or "bytes"; valid for the life of the program
    std::uint64_t held = 0;
    std::uint64_t most = 0;
    std::uint64_t user_held = 0;  ///< of all processes of the user together
    std::uint64_t user_most = 0;  ///< 2^64 - 1: there is no such limit
};

/// An attached process.
struct AttachedProcess {
    std::uint32_t number = 0;  ///< the server's number for it, as in the log
    std::uint32_t pid = 0;
    std::uint32_t uid = 0;
    std::string description;    ///< as in the log: `pid 4711 "gateway", uid 1001`; all characters are printable
    bool ending = false;        ///< it is being taken down
    bool own_memory = false;    ///< it registers memory of its own (AttachOptions::own_memory)
    std::uint64_t refused = 0;  ///< calls that the server refused
    std::vector<Holding> holdings;
};

/// Serves the socket at which processes attach to a runtime.
class POLLCORE_API AttachServer {
public:
    /// Makes the socket config.path and listens there. Replaces a socket that a killed daemon of this user has left
    /// there. Makes the socket file again if somebody removes it later. The runtime must outlive this object. Throws
    /// Error: EADDRINUSE if another process seems to have its socket there.
    AttachServer(Runtime& runtime, const AttachConfig& config);
    ~AttachServer();
    AttachServer(const AttachServer&) = delete;
    AttachServer& operator=(const AttachServer&) = delete;

    /// From now on no process can attach. Sends EventType::stopping to the attached processes, and waits at most
    /// `drain` until they have finished and detached. Then takes down the others, which still get their last
    /// completions. Returns false when not all requests were flushed in time. The destructor calls stop() with the
    /// runtime's drain_timeout.
    bool stop(std::chrono::milliseconds drain);

    /// Changes which users and groups may attach, and the limits of each process and each user. Path, owner, group and
    /// mode of the socket stay. The change holds for attached processes, too: a process keeps the objects that it has,
    /// but a process that the new configuration excludes is ended. Throws Error(EINVAL), and changes nothing, for a
    /// user or group that this machine does not know.
    void configure(const AttachConfig& config);
    /// From now on no further process can attach, until resume(). Attached processes go on.
    void pause() noexcept;
    void resume() noexcept;
    [[nodiscard]] bool paused() const noexcept;

    /// All attached processes, by number. Throws Error(ETIMEDOUT) as the calls of Context.
    [[nodiscard]] std::vector<AttachedProcess> processes() const;
    /// Ends the attachment of a process. The process first gets EventType::stopping with `reason`, and has `grace` to
    /// detach by itself. Then it is taken down: its queue pairs go to error and are drained, its memory is released,
    /// and the log has `reason` as the end of a sentence: "was disconnected by its operator". Does not wait for any of
    /// this. Returns false if there is no such process, or if it is being taken down already. Throws Error(ETIMEDOUT)
    /// as the calls of Context.
    bool disconnect(std::uint32_t process, const std::string& reason,
                    std::chrono::milliseconds grace = std::chrono::milliseconds(0));

    [[nodiscard]] AttachCounts counts() const;
    /// Whether the thread that lets processes attach makes progress. Does not wait for that thread. Runtime::health()
    /// reports the other threads.
    [[nodiscard]] ThreadHealth health() const;

private:
    class Server;
    std::unique_ptr<Server> server_;
};

}  // namespace pollcore
