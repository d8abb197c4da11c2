// The object that made a session, and the descriptors by which the two sides of the session wake each other.
//
// Thread safety: any.
#pragma once

#include <chrono>
#include <cstdint>

#include "pollcore/handle.hpp"

namespace pollcore {

/// The interface by which a session is closed. Lives as long as any session that it has made.
class SessionHost {
public:
    SessionHost() noexcept;
    virtual ~SessionHost() = default;
    /// Whether this process is a forked child of the process that made this object. The threads of the runtime are then
    /// not in this process, and the objects belong to the parent.
    [[nodiscard]] bool is_forked() const noexcept;
    /// Whether this process has made the queue pair and has not closed it. Any thread may call this; it does not wait.
    [[nodiscard]] virtual bool has_queue_pair(QpHandle qp) const noexcept = 0;
    /// Retires the session's queue pairs and detaches the session from its worker. Afterwards only the caller uses the
    /// rings, which have the last completions in them.
    virtual void close_session(std::uint32_t session_id) noexcept = 0;
    /// Releases the session's shared memory.
    virtual void release_session(std::uint32_t session_id) noexcept = 0;

private:
    int process_;
};

/// The descriptors by which the two sides of a session wake each other (D23). They live until release_session().
struct SessionWaking {
    int worker_fd = -1;                ///< eventfd on which the worker sleeps; -1: it never sleeps
    int application_fd = -1;           ///< descriptor that the worker writes: Session::event_fd()
    std::chrono::nanoseconds spin{0};  ///< how long wait() spins before it sleeps
    /// If true, application_fd is the receiving end of a socket pair, because the worker does not trust the
    /// application's process. If false, application_fd is an eventfd.
    bool application_socket = false;
};

}  // namespace pollcore
