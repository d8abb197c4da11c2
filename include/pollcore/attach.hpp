// Attaches this process to a daemon. The process then uses the daemon's polling cores and devices through shared
// memory.
//
//     #include <pollcore/attach.hpp>
//
//     // The session works like a session of a Runtime: see context.hpp.
//     pollcore::Session join(pollcore::Attachment& daemon) {
//         daemon = pollcore::Attachment({.path = "/run/pollcore/pollcored.sock", .name = "gateway"});
//         return daemon.open_session();
//     }
//
// Submissions and completions go through rings that this process shares with one worker of the daemon, without system
// calls. Payload is not copied: the device reads and writes this process's memory, at this process's addresses. Most
// other calls ask the daemon over a socket. The daemon keeps attached processes apart: each process has its own
// protection domain, which the device checks.
//
// Memory for devices comes from Context::allocate or from a pool. register_memory accepts a range inside such memory.
// It refuses other memory with EOPNOTSUPP, unless AttachOptions::own_memory is set.
//
// If the daemon dies, each request in flight completes with Status::daemon_gone as soon as the kernel reports the
// death. From then on no device writes into this process's memory. Calls that ask the daemon then throw
// Error(ECONNRESET), unless they end an object. Memory may still be read. reattach() attaches again. A daemon that
// stops in order first completes every request itself, with the true status or with session_closed. If a process breaks
// the rules, the daemon ends the attachment. The daemon then also completes every request, and its log has the reason.
//
// Thread safety: as Context; no other thread may use this object during reattach(). One thread of this library waits
// for the daemon's answers and events, and for the daemon's end. This thread does nothing else, and is bound to no CPU.
// fork(): see context.hpp. The rings and memory are not mapped in the child: an access there is a segmentation fault.
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
    std::string path = kAttachPath;  ///< the daemon's socket: `path` in table [attach] of its configuration
    std::string name{};              ///< name of this process in the daemon's log; empty: the kernel's name of it
    /// How long to keep trying the socket, because the daemon may still be starting. 0 means one try.
    std::chrono::milliseconds timeout{0};
    /// A call that asks the daemon throws Error(ETIMEDOUT) when the daemon has not answered within the sum of this
    /// time, the call's own time limit and the daemon's drain_timeout. The daemon may still carry out the call; it then
    /// undoes the call when the attachment ends.
    std::chrono::milliseconds answer_within{30'000};
    /// Context::register_memory and register_memory_at accept memory of the program, by one of two ways.
    ///
    /// On a verbs device of the kernel the daemon opens a context for this process alone, and this process registers
    /// any memory itself, wherever it lies, within its own RLIMIT_MEMLOCK. The constructor throws Error(EPERM) if the
    /// daemon's operator does not permit that (`attach.own_memory`; a NIC needs the user's name there). Such memory
    /// takes no windows and no write ring.
    ///
    /// On another device the memory must be private: from malloc, from mmap, or static variables. The library copies
    /// the pages of such memory to memory that the daemon can map, and puts that in their place. When the last region
    /// in them is deregistered, they become private memory again. Until then:
    /// - A child of fork() shares these pages with this process.
    /// - The pages have none of the properties that madvise(2), mlock(2) or mbind(2) gave them.
    /// - Memory that lies in these pages wholly can be registered as well; memory that lies in them partly cannot.
    ///
    /// While such memory is registered or deregistered, nobody else may write to its pages: no other thread, not even
    /// to another variable on the first or the last page, and no I/O under way. The write would be lost. If other
    /// threads run, register whole pages, such as aligned_alloc(3) gives.
    /// Throws Error, and nothing has changed: EOPNOTSUPP for shared memory, mapped files, huge pages, this thread's
    /// stack and its thread-local variables; EINVAL for memory that is not mapped. Stacks of other threads must not be
    /// registered. The daemon's limit registered_max counts from the beginning of the first page; RLIMIT_MEMLOCK does
    /// not apply. When the daemon dies, the memory keeps its content.
    bool own_memory = false;
};

/// A Context whose workers and devices are in a daemon. Move-only.
class POLLCORE_API Attachment : public Context {
public:
    /// Attaches to the daemon. Throws Error: ENOENT or ECONNREFUSED when there is no daemon at this path, EACCES when
    /// this user may not attach, EPROTO when the daemon has another version, ENOSPC when too many processes are
    /// attached.
    explicit Attachment(const AttachOptions& options = {});
    ~Attachment();
    Attachment(Attachment&&) noexcept;
    Attachment& operator=(Attachment&&) noexcept;

    /// Ends the attachment: every request in flight completes, as when a runtime stops. Returns false if not all
    /// requests were flushed in time. Returns true if the attachment had ended already. The destructor calls stop().
    bool stop();

    /// Whether the attachment has ended: the daemon has died, the daemon has ended the attachment, or this object was
    /// stopped. If the daemon has died, requests in flight complete only when the kernel reports the death, which may
    /// be later.
    [[nodiscard]] bool lost() const noexcept;
    /// Attaches again, to the daemon at the same path. Waits up to `timeout` until a daemon is there. If the old
    /// attachment still lives, it ends. Objects of the old attachment cannot be used afterwards, but its sessions still
    /// return their last completions. Throws as the constructor.
    void reattach(std::chrono::milliseconds timeout = std::chrono::seconds(10));

    /// The number by which the daemon's log names this process.
    [[nodiscard]] std::uint32_t client() const;

private:
    POLLCORE_INTERNAL Attachment(const AttachOptions& options, std::shared_ptr<AttachedState> state);

    AttachOptions options_;
    AttachedState* state_ = nullptr;  // Context owns it
};

}  // namespace pollcore
