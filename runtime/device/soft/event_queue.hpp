// Asynchronous events of a device, and which of them are not acknowledged yet.
//
// Thread safety: all functions, from any thread. Engines raise events under their lock; this queue's mutex is
// taken last and nothing is called while it is held.
// Events are rare, so a mutex and an allocation do not matter here.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <optional>

#include <infiniband/verbs.h>

namespace pollcore::soft {

class EventQueue {
public:
    EventQueue();
    EventQueue(const EventQueue&) = delete;
    EventQueue& operator=(const EventQueue&) = delete;
    ~EventQueue();

    [[nodiscard]] int fd() const noexcept { return fd_; }

    void raise(ibv_event_type type, ibv_cq* cq) noexcept;
    void raise(ibv_event_type type, ibv_qp* qp) noexcept;
    void raise(ibv_event_type type, ibv_srq* srq) noexcept;
    void raise_port(ibv_event_type type, int port) noexcept;
    void raise_device(ibv_event_type type) noexcept;
    /// Nothing more comes: fd() is readable for good, and take() throws Error(EIO) once the queue is empty.
    void close() noexcept;

    [[nodiscard]] std::optional<ibv_async_event> take();
    void acknowledge(const ibv_async_event& event) noexcept;

    /// Events of the object that were taken and not acknowledged.
    [[nodiscard]] std::uint32_t unacknowledged(const void* object);
    /// Drops the events of the object that nobody has taken.
    void forget(const void* object);

private:
    struct Queued {
        ibv_async_event event;
        const void* object;
    };
    // How many events may wait or be unacknowledged before more need an allocation. An event that there is no memory
    // for is lost.
    static constexpr std::size_t kUsual = 64;

    void push(const Queued& queued) noexcept;
    void rest_if_empty() noexcept;
    static const void* object_of(const ibv_async_event& event) noexcept;

    std::mutex mutex_;
    // An event's node goes from unused_ to queue_. If the event has an object, the node then goes to taken_. At last it
    // goes back to unused_.
    std::list<Queued> queue_;
    std::list<Queued> taken_;
    std::list<Queued> unused_;
    int fd_ = -1;
    bool closed_ = false;
};

}  // namespace pollcore::soft
