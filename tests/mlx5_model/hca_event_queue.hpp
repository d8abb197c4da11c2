// Queues of records that a program reads one by one from a descriptor of the kernel: the events of completion channels
// and of devices.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "file.hpp"

namespace mlx5_model {

/// Counts the records about one object that the program has read. The kernel reports this number when the object is
/// destroyed. The libraries then wait until the program has acknowledged this many records.
using Reported = std::shared_ptr<std::atomic<std::uint32_t>>;
inline Reported none_reported() {
    return std::make_shared<std::atomic<std::uint32_t>>(0);
}

/// The descriptor is an eventfd that is readable as long as there are records, and after end(). So the kernel itself
/// implements poll(2) and the descriptor's flags.
class EventQueue : public File {
public:
    using Record = std::vector<std::uint8_t>;

    /// Throws std::system_error if there is no free descriptor.
    EventQueue();

    /// The program that gets the descriptor owns and closes it.
    [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
    /// `reported` is incremented when the record is read.
    void push(const void* record, std::size_t size, Reported reported = nullptr);
    template <class Event>
    void push(const Event& event, Reported reported = nullptr) {
        push(&event, sizeof event, std::move(reported));
    }
    /// Drops the unread records of one object, and returns their number.
    std::size_t forget(const Reported& reported);
    void forget_all();
    /// From now on the queue takes no record, and a read of the empty queue fails with EIO, as after the removal of a
    /// device.
    void end();
    /// Takes the next record. Waits for it unless the descriptor has O_NONBLOCK. Returns 0 or -errno.
    long take(Record& record);

    /// Reads one record, cut to `size`.
    long read(void* to, std::size_t size) override;
    /// From now on the queue leaves the descriptor alone, because another file may get its number while objects still
    /// hold the queue.
    void closed() override;

private:
    struct Waiting {
        Record record;
        Reported reported;
    };
    void make_readable();
    void make_unreadable();

    int descriptor_;
    std::mutex lock_;
    std::deque<Waiting> records_;
    bool ended_ = false;
    bool closed_ = false;
};

}  // namespace mlx5_model
