#include "event_queue.hpp"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace mlx5_model {

EventQueue::EventQueue() : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE)) {
    if (descriptor_ < 0) {
        throw std::system_error(errno, std::generic_category(), "eventfd");
    }
}

void EventQueue::push(const void* record, std::size_t size, Reported reported) {
    const auto* bytes = static_cast<const std::uint8_t*>(record);
    const std::lock_guard guard(lock_);
    if (ended_) {
        return;
    }
    records_.push_back({Record(bytes, bytes + size), std::move(reported)});
    const std::uint64_t one = 1;
    (void)libc::write(descriptor_, &one, sizeof one);
}

std::size_t EventQueue::forget(const Reported& reported) {
    const std::lock_guard guard(lock_);
    const std::size_t gone = std::erase_if(records_, [&](const Waiting& waiting) { return waiting.reported == reported; });
    for (std::size_t i = 0; i < gone; ++i) {
        std::uint64_t one = 0;
        (void)libc::read(descriptor_, &one, sizeof one);
    }
    return gone;
}

void EventQueue::end() {
    const std::lock_guard guard(lock_);
    ended_ = true;
    // Readable for ever.
    const std::uint64_t many = 1u << 30;
    (void)libc::write(descriptor_, &many, sizeof many);
}

long EventQueue::take(Record& record) {
    std::uint64_t one = 0;
    if (libc::read(descriptor_, &one, sizeof one) < 0) {
        return -errno;
    }
    const std::lock_guard guard(lock_);
    if (records_.empty()) {
        return ended_ ? -EIO : -EAGAIN;
    }
    record = std::move(records_.front().record);
    if (records_.front().reported != nullptr) {
        records_.front().reported->fetch_add(1);
    }
    records_.pop_front();
    return 0;
}

long EventQueue::read(void* to, std::size_t size) {
    Record record;
    if (const long error = take(record); error != 0) {
        return error;
    }
    size = std::min(size, record.size());
    std::memcpy(to, record.data(), size);
    return static_cast<long>(size);
}

}  // namespace mlx5_model
