// The asynchronous events of a device: those that nobody has taken yet, and those that were taken but not acknowledged.
//
// Thread safety: any thread may call all functions. Engines raise events under their own lock, so a thread takes this
// queue's mutex last. The queue calls no other code while it holds the mutex.
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
    /// No more events come. From now on fd() stays readable, and take() throws Error(EIO) when the queue is empty.
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
    // Room for this many events, waiting or unacknowledged, is allocated at the start. Each further event needs an
    // allocation, and is lost if the allocation fails.
    static constexpr std::size_t kUsual = 64;

    void push(const Queued& queued) noexcept;
    void rest_if_empty() noexcept;
    static const void* object_of(const ibv_async_event& event) noexcept;

    std::mutex mutex_;
    // A list node moves from unused_ to queue_ when an event is raised. When the event is taken, the node moves to
    // taken_ if the event belongs to an object, and otherwise back to unused_. An acknowledgement moves it from taken_
    // to unused_.
    std::list<Queued> queue_;
    std::list<Queued> taken_;
    std::list<Queued> unused_;
    int fd_ = -1;
    bool closed_ = false;
};

}  // namespace pollcore::soft
