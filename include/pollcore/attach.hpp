// Joining a daemon: its polling cores and devices, used from this process through shared memory.
//
//     #include <pollcore/attach.hpp>
//
//     // From here on as with a Runtime: see context.hpp.
//     pollcore::Session join(pollcore::Attachment& daemon) {
//         daemon = pollcore::Attachment({.path = "/run/pollcore/pollcored.sock", .name = "gateway"});
//         return daemon.open_session();
//     }
//
// Submissions and completions go through rings that this process shares with one worker of the daemon: no system call
// is made, and payload is not copied, since the device reads it from this process's memory at this process's addresses.
// All other calls ask the daemon over a socket. The daemon keeps attached processes apart: each has a protection domain
// of its own, which the device checks.
//
// Memory for devices is allocated here (Context::allocate, or pools). register_memory takes parts of such memory, and
// refuses other memory with EOPNOTSUPP, since the daemon could not map it.
//
// When the daemon dies, each request in flight completes with Status::daemon_gone, as soon as the kernel reports the
// death; no device writes into this memory from then on. All calls then throw Error(ECONNRESET), objects may be
// destroyed as always, memory can still be read, and reattach() begins anew. A daemon that stops in order first
// completes everything itself, with the true status or with session_closed. A daemon that ends an attachment because it
// broke the rules does that, too, and its log says why.
//
// Thread safety: as Context; no other thread may use this object during reattach(). One thread of this library waits
// for the daemon's answers and its end; it does nothing else, and is bound to no CPU. fork(): see context.hpp. The
// rings and memory are not mapped in the child: touching them there is a segmentation fault.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "pollcore/context.hpp"
#include "pollcore/export.h"

namespace pollcore {

class AttachedState;

inline constexpr const char* kAttachPath = "/run/pollcore/pollcored.sock";

/// Which daemon a process attaches to, and how long it waits for answers.
struct AttachOptions {
    std::string path = kAttachPath;  ///< `path` of the daemon's [attach]
    std::string name{};              ///< how the daemon's log calls this process; empty: the kernel's name for it
    /// How long to try the socket again, since the daemon may be starting. 0: try once.
    std::chrono::milliseconds timeout{0};
    /// A control call throws Error(ETIMEDOUT) when the daemon has not answered within this time, plus the call's own
    /// time limit and the daemon's drain_timeout. The daemon may still carry the call out; it undoes that when the
    /// attachment ends.
    std::chrono::milliseconds answer_within{30'000};
};

/// A Context whose workers and devices are a daemon's. Move-only.
class POLLCORE_API Attachment : public Context {
public:
    /// Attaches to the daemon. Throws Error: ENOENT or ECONNREFUSED when there is no daemon at this path, EACCES when
    /// this user may not attach, EPROTO when the daemon is of another version, ENOSPC when it takes no more processes.
    explicit Attachment(const AttachOptions& options = {});
    ~Attachment();
    Attachment(Attachment&&) noexcept;
    Attachment& operator=(Attachment&&) noexcept;

    /// Ends the attachment: everything in flight completes, as when a runtime stops. False when draining was cut short.
    /// The destructor does this, too.
    bool stop();

    /// Whether the daemon has died or has ended this attachment. Requests in flight complete only when the kernel
    /// reports the death, which may be later.
    [[nodiscard]] bool lost() const noexcept;
    /// Attaches again, to the daemon at the same path; waits up to `timeout` for one. Objects made before stay dead,
    /// but their sessions still give the last completions. Throws as the constructor.
    void reattach(std::chrono::milliseconds timeout = std::chrono::seconds(10));

    /// The daemon's number for this process, which stands in its log.
    [[nodiscard]] std::uint32_t client() const;

private:
    POLLCORE_INTERNAL Attachment(const AttachOptions& options, std::shared_ptr<AttachedState> state);

    AttachOptions options_;
    AttachedState* state_ = nullptr;  // Context owns it
};

}  // namespace pollcore
