#include "attach/shared_memory.hpp"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "pollcore/error.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; Debian 12's C library knows it
#endif

namespace pollcore {
namespace {

constexpr std::size_t kHugePage = 2u << 20;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

std::size_t rounded(std::size_t bytes, std::size_t page) noexcept {
    return (bytes + page - 1) / page * page;
}

// The size of the pieces in which memory is populated and unmapped. While a piece is populated or unmapped, other
// threads of this process cannot map or unmap memory.
constexpr std::size_t kPiece = 16u << 20;

template <class F>
void in_pieces(void* data, std::size_t bytes, F&& each) {
    for (std::size_t done = 0; done < bytes; done += kPiece) {
        each(static_cast<std::byte*>(data) + done, std::min(kPiece, bytes - done));
    }
}

HostMemory mapped(void* data, std::size_t bytes) noexcept {
    return {data, bytes, [](void* what, std::size_t size) noexcept {
                in_pieces(what, size, [](void* piece, std::size_t length) { (void)::munmap(piece, length); });
            }};
}

// Makes the descriptor and the mapping, with every page populated. Returns false, and sets errno, if memory is short.
bool try_make(SharedMemory& made, std::size_t bytes, unsigned flags, const char* what_for) noexcept {
    made.fd.reset(::memfd_create(what_for, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
    if (!made.fd.valid() || ::ftruncate(made.fd.get(), static_cast<off_t>(bytes)) != 0) {
        return false;
    }
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made.fd.get(), 0);
    if (data == MAP_FAILED) {
        return false;
    }
    made.mapping = mapped(data, bytes);
    // This call fails if a page is not available. Touching such a page would raise SIGBUS.
    return ::madvise(data, bytes, MADV_POPULATE_WRITE) == 0;
}

[[noreturn]] void refuse(int error, const std::string& why) {
    throw Error(error, "shared memory is not accepted: " + why);
}

}  // namespace

SharedMemory make_shared_memory(std::size_t bytes, const char* what_for, PageSize pages) {
    if (bytes == 0) {
        throw Error(EINVAL, std::string("no bytes of memory for ") + what_for);
    }
    SharedMemory made;
    if (pages == PageSize::ordinary || bytes < kHugePage ||
        !try_make(made, rounded(bytes, kHugePage), MFD_HUGETLB | MFD_HUGE_2MB, what_for)) {
        made = {};
        if (!try_make(made, rounded(bytes, static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))), 0, what_for)) {
            const int error = errno;
            throw Error(error, std::to_string(bytes) + " bytes of memory for " + what_for + " are not to be had");
        }
    }
    // A forked child that wrote to this memory would write to the daemon in its parent's name.
    (void)::madvise(made.mapping.data(), made.mapping.size(), MADV_DONTFORK);
    return made;
}

HostMemory map_and_seal(const UniqueFd& fd, std::size_t bytes) {
    if (::fcntl(fd.get(), F_GET_SEALS) < 0) {  // only a memfd has seals
        refuse(EINVAL, "the descriptor is no memfd");
    }
    struct stat status {};
    if (::fstat(fd.get(), &status) != 0 || status.st_size < 0) {
        refuse(EINVAL, "it has no size");
    }
    const auto size = static_cast<std::size_t>(status.st_size);
    // The file consists of whole pages, which may be huge pages.
    if (bytes == 0 || size < bytes || size - bytes >= kHugePage ||
        size % static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) != 0) {
        refuse(EINVAL, "it has " + std::to_string(size) + " bytes, but the request says " + std::to_string(bytes));
    }
    void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (data == MAP_FAILED) {
        refuse(errno == ENOMEM ? ENOMEM : EINVAL, "it cannot be mapped");
    }
    HostMemory mapping = mapped(data, size);
    if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
        refuse(EINVAL, "it cannot be sealed");
    }
    if (const int seals = ::fcntl(fd.get(), F_GET_SEALS); seals < 0 || (seals & kSeals) != kSeals) {
        refuse(EINVAL, "its seals do not hold");
    }
    // The size may have been changed before the seal.
    if (::fstat(fd.get(), &status) != 0 || static_cast<std::size_t>(status.st_size) != size) {
        refuse(EINVAL, "its size has changed");
    }
    // A page counts against the limits of the process that touched it first (memory cgroups). st_blocks counts blocks
    // of 512 bytes (stat(2)).
    if (static_cast<std::size_t>(status.st_blocks) < size / 512) {
        refuse(EINVAL, "it has pages that were never touched");
    }
    in_pieces(data, size, [](void* piece, std::size_t length) {
        if (::madvise(piece, length, MADV_POPULATE_WRITE) != 0) {
            refuse(ENOMEM, std::string("its pages cannot be had: ") + std::strerror(errno));
        }
    });
    (void)::madvise(data, size, MADV_DONTDUMP);  // keeps the memory out of this process's core files
    return mapping;
}

SharedMemory make_published_memory(std::size_t bytes, const char* what_for) {
    SharedMemory made;
    if (!try_make(made, rounded(bytes, static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))), 0, what_for) ||
        ::fcntl(made.fd.get(), F_ADD_SEALS, kSeals) != 0) {
        const int error = errno;
        throw Error(error, std::string("no memory to publish ") + what_for + " in");
    }
    return made;
}

HostMemory map_published(const UniqueFd& fd, std::size_t bytes) {
    const std::size_t size = rounded(bytes, static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (data == MAP_FAILED) {
        const int error = errno;
        throw Error(error, "what the daemon publishes cannot be mapped");
    }
    return mapped(data, size);
}

}  // namespace pollcore
