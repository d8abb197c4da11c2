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
// Submissions and completions go through rings that this process shares with one worker of the daemon: no system call,
// and no copy of what is sent, which the device reads from this process's memory at this process's addresses.
// Everything else is asked of the daemon over a socket. The daemon keeps those who are attached apart: a protection
// domain for each, checked by the device.
//
// Memory that devices shall reach is allocated here (Context::allocate, or pools). register_memory takes parts of such
// memory, and refuses other memory with EOPNOTSUPP: the daemon could not map it.
//
// When the daemon dies, each request in flight completes with Status::daemon_gone, as soon as the kernel says that it
// is gone; then no device writes into this memory any more. All calls then throw Error(ECONNRESET), objects may be
// destroyed as always, memory can still be read, and reattach() begins anew. A daemon that is stopped in order
// completes everything itself before (session_closed, or what became of it). One that ends an attachment since its
// rules were broken does the same, and its log says why.
//
// Thread safety: as Context; reattach() not while another thread uses this object. One thread of this library waits for
// the daemon's answers and its end; it does nothing else, and is on no particular CPU. fork(): see context.hpp. The
// rings and memory are not in the child: touching them there is a segmentation fault.
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

struct AttachOptions {
    std::string path = kAttachPath;  ///< `path` of the daemon's [attach]
    std::string name{};              ///< how the daemon's log calls this process; empty: as the kernel does
    /// The daemon may be starting: so long its socket is tried again. 0: once.
    std::chrono::milliseconds timeout{0};
    /// A call of the control side throws Error(ETIMEDOUT) when the daemon has not answered within this, beyond the
    /// times that the call itself and the daemon's drain_timeout allow. What was asked for may still happen; the daemon
    /// takes it back at the end.
    std::chrono::milliseconds answer_within{30'000};
};

class POLLCORE_API Attachment : public Context {
public:
    /// Throws Error: ENOENT or ECONNREFUSED when there is no daemon at this path, EACCES when this user may not attach,
    /// EPROTO when it is of another version, ENOSPC when it has as many as it takes.
    explicit Attachment(const AttachOptions& options = {});
    ~Attachment();
    Attachment(Attachment&&) noexcept;
    Attachment& operator=(Attachment&&) noexcept;

    /// Ends it: everything in flight completes, as when a runtime stops. False when draining was cut short. The
    /// destructor does it too.
    bool stop();

    /// The daemon has died, or has ended this attachment. Requests in flight may still wait for the kernel to say so.
    [[nodiscard]] bool lost() const noexcept;
    /// Attaches again, to whoever listens at the same path; waits for so long until somebody does. What was made before
    /// stays dead, and still gives its last completions. Throws as the constructor.
    void reattach(std::chrono::milliseconds timeout = std::chrono::seconds(10));

    /// The daemon's number for this process, which stands in its log.
    [[nodiscard]] std::uint32_t client() const;

private:
    POLLCORE_INTERNAL Attachment(const AttachOptions& options, std::shared_ptr<AttachedState> state);

    AttachOptions options_;
    AttachedState* state_ = nullptr;  // Context owns it
};

}  // namespace pollcore
