// Memory of a test's own, which is private and begins on a page.
#pragma once

#include <sys/mman.h>

#include <cstddef>

#include <gtest/gtest.h>

namespace pollcore::test {

inline constexpr std::size_t kPage = 4096;

/// Private pages that nobody else uses.
class OwnPages {
public:
    explicit OwnPages(std::size_t pages) : size_(pages * kPage), data_(map(nullptr, 0)) {}
    ~OwnPages() { ::munmap(data_, size_); }
    OwnPages(const OwnPages&) = delete;
    OwnPages& operator=(const OwnPages&) = delete;

    /// Unmaps the pages from `first` on, and maps others there.
    void map_anew(std::size_t first = 0) {
        ::munmap(data_ + first * kPage, size_ - first * kPage);
        EXPECT_EQ(map(data_ + first * kPage, first), data_ + first * kPage);
    }
    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] std::size_t size() const { return size_; }

private:
    std::byte* map(void* where, std::size_t first) const {
        return static_cast<std::byte*>(
            ::mmap(where, size_ - first * kPage, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | (where != nullptr ? MAP_FIXED_NOREPLACE : 0), -1, 0));
    }
    const std::size_t size_;
    std::byte* const data_;
};

}  // namespace pollcore::test
