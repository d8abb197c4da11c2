#include "attach/moved_memory.hpp"

#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include <fmt/format.h>

#include "base/log.hpp"
#include "pollcore/error.hpp"

namespace pollcore {
namespace {

constexpr const char* kName = "pollcore own memory";
// The library's own thread stops within microseconds, unless it waits for somebody who reads the log.
constexpr std::chrono::seconds kPatience{30};

[[noreturn]] void refuse(int error, Pages pages, const std::string& why) {
    throw Error(error, fmt::format("registering memory of the program's own: what lies from {} to {} {}",
                                   static_cast<const void*>(pages.begin), static_cast<const void*>(pages.end()), why));
}

bool overlap(Pages a, Pages b) noexcept {
    return a.begin < b.end() && b.begin < a.end();
}

Pages own_stack() {
    pthread_attr_t attributes;
    if (const int error = ::pthread_getattr_np(::pthread_self(), &attributes); error != 0) {
        throw Error(error, "nobody knows where this thread's stack is");
    }
    void* begin = nullptr;
    std::size_t size = 0;
    (void)::pthread_attr_getstack(&attributes, &begin, &size);
    (void)::pthread_attr_destroy(&attributes);
    return {static_cast<std::byte*>(begin), size};
}

// Calls `is_it` with each segment of the program and its libraries, until it returns true. Returns whether it did.
template <class F>
bool any_segment(const F& is_it) {
    const auto look = [](dl_phdr_info* object, std::size_t, void* test) {
        const auto is_one = [&](const ElfW(Phdr) & segment) {
            return (*static_cast<const F*>(test))(*object, segment);
        };
        return static_cast<int>(std::any_of(object->dlpi_phdr, object->dlpi_phdr + object->dlpi_phnum, is_one));
    };
    return ::dl_iterate_phdr(look, const_cast<F*>(&is_it)) != 0;
}

// The thread that moves the pages writes to its stack, the kernel to its record of the thread (rseq(2)), and anybody to
// thread-local variables.
void refuse_memory_of_this_thread(Pages pages) {
    const auto is_thread_local = [&](const dl_phdr_info& object, const ElfW(Phdr) & segment) {
        return segment.p_type == PT_TLS && object.dlpi_tls_data != nullptr &&
               overlap(pages, {static_cast<std::byte*>(object.dlpi_tls_data), segment.p_memsz});
    };
    constexpr std::size_t kRecord = 4096;  // more than it has
    if (overlap(pages, own_stack()) || pages.contain(__builtin_frame_address(0)) ||
        overlap(pages, {reinterpret_cast<std::byte*>(::pthread_self()), kRecord}) || any_segment(is_thread_local)) {
        refuse(EOPNOTSUPP, pages,
               "is the calling thread's stack, or its thread-local variables; use memory from malloc, from mmap or "
               "from Context::allocate");
    }
}

// Variables of the program or of a library. The kernel maps them privately from the program's file.
bool is_static_data(Pages pages) {
    return any_segment([&](const dl_phdr_info& object, const ElfW(Phdr) & segment) {
        if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) == 0 || segment.p_memsz == 0) {
            return false;
        }
        const Pages whole = pages_of(reinterpret_cast<std::byte*>(object.dlpi_addr + segment.p_vaddr), segment.p_memsz);
        return whole.begin <= pages.begin && pages.end() <= whole.end();
    });
}

void require_movable(const Mapping& mapping) {
    const auto refuse_as = [&](const char* what) {
        refuse(EOPNOTSUPP, mapping.pages,
               fmt::format("is {}{}{}; the library moves only private memory from malloc, from mmap and of static "
                           "variables. Context::allocate gives memory that needs no move",
                           what, mapping.name.empty() ? "" : " ", mapping.name));
    };
    if (mapping.shared && mapping.name.find(kName) != std::string::npos) {
        refuse(EOPNOTSUPP, mapping.pages,
               "is registered already, by another attachment or in other memory; deregister it there first");
    }
    if (mapping.shared) {
        refuse_as("a shared mapping");
    }
    if (!mapping.readable || !mapping.writable || mapping.executable) {
        refuse_as("memory that cannot be read and written, or that can be executed");
    }
    if (mapping.name.rfind("/anon_hugepage", 0) == 0) {
        refuse_as("on huge pages (MAP_HUGETLB)");
    }
    if (mapping.inode != 0 && !is_static_data(mapping.pages)) {
        refuse_as("a mapping of the file");
    }
    if (mapping.name.rfind("[anon:", 0) != 0 && mapping.name != "[heap]" && mapping.name.rfind('[', 0) == 0) {
        refuse_as("a mapping of the kernel's, or a stack:");
    }
}

// In this thread no signal handler runs as long as the object exists.
class NoSignals {
public:
    NoSignals() noexcept {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    NoSignals(const NoSignals&) = delete;
    NoSignals& operator=(const NoSignals&) = delete;

private:
    sigset_t before_{};
};

// What follows makes system calls itself: UCX replaces the C library's mremap() by one that loses the address.

// memcpy() would be killed by a page that cannot be read. Returns an errno value.
int copy(const void* from, void* to, std::size_t size) noexcept {
    for (std::size_t done = 0; done < size;) {
        iovec source{static_cast<std::byte*>(const_cast<void*>(from)) + done, size - done};
        iovec target{static_cast<std::byte*>(to) + done, size - done};
        const long copied = ::syscall(SYS_process_vm_readv, ::getpid(), &target, 1, &source, 1, 0);
        if (copied <= 0) {
            return copied < 0 ? errno : EFAULT;
        }
        done += static_cast<std::size_t>(copied);
    }
    return 0;
}

void* map_private(void* where, std::size_t size, int flags) noexcept {
    return reinterpret_cast<void*>(
        ::syscall(SYS_mmap, where, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0));
}

// Copies the pages to `other`, and puts that mapping in their place. Writes to no other memory but the stack. Returns
// an errno value.
int replace(Pages pages, void* other) noexcept {
    const NoSignals none;
    if (const int error = copy(pages.begin, other, pages.size); error != 0) {
        return error;
    }
    if (::syscall(SYS_mremap, other, pages.size, pages.size, MREMAP_MAYMOVE | MREMAP_FIXED, pages.begin) ==
        reinterpret_cast<long>(pages.begin)) {
        return 0;
    }
    const int error = errno;
    // A kernel without memory may have unmapped the pages before it failed.
    if (void* again = map_private(pages.begin, pages.size, MAP_FIXED_NOREPLACE); again == pages.begin) {
        (void)copy(other, again, pages.size);
    }
    return error;
}

}  // namespace

Pages pages_of(std::byte* data, std::size_t bytes) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    const std::size_t before = address % page;
    if (address > UINTPTR_MAX - page || bytes > UINTPTR_MAX - page - address) {
        throw Error(EINVAL, std::to_string(bytes) + " bytes of memory exceed the address space");
    }
    return {data - before, (before + bytes + page - 1) / page * page};
}

std::shared_ptr<MovedMemory> MovedMemory::find(Pages pages, const std::vector<std::shared_ptr<MovedMemory>>& moved) {
    refuse_memory_of_this_thread(pages);
    std::shared_ptr<MovedMemory> found;
    std::byte* from = pages.begin;
    for (const Mapping& mapping : mappings_within(pages)) {
        if (mapping.pages.begin != from) {
            break;
        }
        const auto whose =
            std::find_if(moved.begin(), moved.end(), [&](const auto& one) { return one->is_here(mapping); });
        const std::shared_ptr<MovedMemory> its = whose != moved.end() ? *whose : nullptr;
        if (its == nullptr) {
            require_movable(mapping);
        }
        if (from != pages.begin && its != found) {
            refuse(EOPNOTSUPP, pages,
                   "is partly in memory that is registered already; register the whole first, and its parts then");
        }
        found = its;
        from = mapping.pages.end();
    }
    if (from != pages.end()) {
        refuse(EINVAL, {from, static_cast<std::size_t>(pages.end() - from)},
               "is not mapped, at least at its beginning");
    }
    return found;
}

MovedMemory::MovedMemory(Pages pages, Pause& reader)
    : pages_(pages), reader_(reader), memory_(make_shared_memory(pages.size, kName, PageSize::ordinary)) {
    struct stat status {};
    if (::fstat(memory_.fd.get(), &status) != 0 ||
        ::madvise(memory_.mapping.data(), memory_.mapping.size(), MADV_DOFORK) != 0) {
        throw Error(errno, "a memfd cannot be prepared");
    }
    device_ = status.st_dev;
    inode_ = status.st_ino;
}

MovedMemory::~MovedMemory() {
    if (!moved_) {
        return;
    }
    try {
        for (const Mapping& mapping : mappings_within(pages_)) {
            if (is_here(mapping)) {
                HostMemory anew(map_private(nullptr, mapping.pages.size, 0), mapping.pages.size,
                                [](void* data, std::size_t size) noexcept {
                                    if (data != MAP_FAILED) {
                                        (void)::syscall(SYS_munmap, data, size);
                                    }
                                });
                put_in_place(mapping.pages, anew);
            }
        }
    } catch (const std::exception& error) {
        log_warning("memory at {} was deregistered, and a forked child shares it all the same: {}",
                    static_cast<const void*>(pages_.begin), error.what());
    }
}

void MovedMemory::move() {
    put_in_place(pages_, memory_.mapping);
    memory_.fd.reset();
    moved_ = true;
}

bool MovedMemory::is_here(const Mapping& mapping) const noexcept {
    return moved_ && mapping.shared && mapping.inode == inode_ && mapping.device == device_ &&
           mapping.pages.begin >= pages_.begin && mapping.pages.end() <= pages_.end() &&
           mapping.offset == static_cast<std::uint64_t>(mapping.pages.begin - pages_.begin);
}

void MovedMemory::put_in_place(Pages pages, HostMemory& other) {
    if (other.data() == MAP_FAILED) {
        refuse(errno, pages, "cannot be copied: memory is short");
    }
    reader_.hold(kPatience);
    const int error = replace(pages, other.data());
    reader_.let_go();
    if (error != 0) {
        refuse(error, pages, "cannot be moved");
    }
    other.disown();
}

}  // namespace pollcore
