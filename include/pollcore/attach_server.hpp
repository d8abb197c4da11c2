// Lets other processes attach to a runtime (attach.hpp): pollcored does, and any program that embeds a runtime can.
//
// Who attaches has sessions, queue pairs and memory of its own, within its quota; it can name nothing of another's, and
// what it writes into the rings that it shares with the workers is checked there. One that breaks the rules, dies or
// hangs up is taken down: its queue pairs to error, drained, its memory released. The log says why. The others do not
// notice.
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

/// Since the server began.
struct AttachCounts {
    std::uint64_t attached = 0;
    std::uint64_t refused = 0;   ///< not allowed, of another version, or too many
    std::uint64_t evicted = 0;   ///< for what they wrote
    std::uint64_t detached = 0;  ///< in order
    std::uint64_t died = 0;      ///< or hung up
    std::uint64_t cut_short =
        0;                  ///< whose requests in flight were not all flushed in time; the runtime has completed them
    std::uint32_t now = 0;  ///< attached, or being taken down
    std::chrono::microseconds longest_clean_up{0};  ///< from the death of one until nothing of it was left
};

class POLLCORE_API AttachServer {
public:
    /// Listens at config.path, which is made. What a killed daemon of this user has left there is replaced; a file that
    /// is removed later is made anew. The runtime outlives this. Throws Error: EADDRINUSE when another process may have
    /// its socket there.
    AttachServer(Runtime& runtime, const AttachConfig& config);
    ~AttachServer();
    AttachServer(const AttachServer&) = delete;
    AttachServer& operator=(const AttachServer&) = delete;

    /// Nobody attaches any more. Those who are there are told (EventType::stopping), and have so long to finish what
    /// they do and to detach; then they are taken down, each with its last completions. False when not all requests
    /// were flushed in time. The destructor does it with the runtime's drain_timeout.
    bool stop(std::chrono::milliseconds drain);

    /// Who may attach, and what each process and each user may have, from here on, of those who are there, too: what
    /// one has it keeps, and whoever may not be there any more is ended. Not path, owner, group and mode. Throws
    /// Error(EINVAL) for a user or group that this machine does not know, and changes nothing.
    void configure(const AttachConfig& config);
    [[nodiscard]] AttachCounts counts() const;
    /// Whether the thread moves that lets processes attach. It does not wait for that thread. The others are in
    /// Runtime::health().
    [[nodiscard]] ThreadHealth health() const;

private:
    class Server;
    std::unique_ptr<Server> server_;
};

}  // namespace pollcore
