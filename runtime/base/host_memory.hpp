// A piece of memory, and the way to release it. A runtime gets the memory from its platform, or shares it with another
// process.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

namespace pollcore {

class HostMemory {
public:
    using Release = void (*)(void* data, std::size_t size) noexcept;

    HostMemory() = default;
    /// Owns `data`. The destructor calls `release`.
    HostMemory(void* data, std::size_t size, Release release) noexcept : data_(data), size_(size), release_(release) {}
    /// `data` belongs to `owner`, which releases it. This object keeps `owner` alive.
    HostMemory(void* data, std::size_t size, std::shared_ptr<void> owner) noexcept
        : data_(data), size_(size), owner_(std::move(owner)) {}
    ~HostMemory() {
        if (release_ != nullptr) {
            release_(data_, size_);
        }
    }
    HostMemory(HostMemory&& other) noexcept { *this = std::move(other); }
    HostMemory& operator=(HostMemory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(release_, other.release_);
        owner_.swap(other.owner_);
        return *this;
    }

    [[nodiscard]] void* data() const noexcept { return data_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

    /// The memory is no longer this object's: the destructor does not release it.
    void disown() noexcept { release_ = nullptr; }

private:
    void* data_ = nullptr;
    std::size_t size_ = 0;
    Release release_ = nullptr;
    std::shared_ptr<void> owner_;
};

}  // namespace pollcore
