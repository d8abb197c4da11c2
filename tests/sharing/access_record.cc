#include "access_record.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace pollcore::sharing {
namespace {

constexpr std::size_t kPlaces = std::size_t{1} << 20;
constexpr std::size_t kNames = 8;
constexpr Role kUnknown = 0xff;

struct Counted {
    std::atomic<std::uint64_t> times{0};
    std::atomic<std::uint64_t> moves{0};
    std::atomic<const void*> where{nullptr};
};
struct Place {
    std::atomic<std::uintptr_t> line{0};
    std::atomic<std::uint32_t> holders{0};  // bit mask of the roles that hold the line in their cache
    std::array<Counted, kRoles> reads;
    std::array<Counted, kRoles> writes;
};

std::unique_ptr<Place[]> places;
std::atomic<bool> recording{false};
std::array<std::pair<const char*, Role>, kNames> names{};
std::atomic<std::size_t> name_count{0};
thread_local Role own_role = kUnknown;

Role role_of_thread() noexcept {
    if (own_role != kUnknown) [[likely]] {
        return own_role;
    }
    std::array<char, 16> name{};
    (void)pthread_getname_np(pthread_self(), name.data(), name.size());
    own_role = kNobody;
    for (std::size_t i = 0; i < name_count.load(std::memory_order_acquire); ++i) {
        if (std::strcmp(names[i].first, name.data()) == 0) {
            own_role = names[i].second;
        }
    }
    return own_role;
}

Place& place_of(std::uintptr_t line) noexcept {
    for (std::size_t at = (line / kLine * 0x9e3779b97f4a7c15u >> 40) % kPlaces;; at = (at + 1) % kPlaces) {
        std::uintptr_t there = places[at].line.load(std::memory_order_acquire);
        if (there == line || (there == 0 && (places[at].line.compare_exchange_strong(there, line) || there == line))) {
            return places[at];
        }
    }
}

[[gnu::noinline]] void note(const volatile void* address, std::size_t bytes, bool write, const void* where) noexcept {
    const Role role = role_of_thread();
    if (role >= kRoles || bytes == 0) {
        return;
    }
    const auto first = reinterpret_cast<std::uintptr_t>(address);
    for (std::uintptr_t line = first / kLine * kLine; line < first + bytes; line += kLine) {
        Place& place = place_of(line);
        const std::uint32_t me = 1u << role;
        const std::uint32_t before = write ? place.holders.exchange(me) : place.holders.fetch_or(me);
        Counted& mine = (write ? place.writes : place.reads)[role];
        mine.times.fetch_add(1, std::memory_order_relaxed);
        // The first access to a line takes it from no other cache.
        if (before != 0 && (write ? before != me : (before & me) == 0)) {
            mine.moves.fetch_add(1, std::memory_order_relaxed);
        }
        mine.where.store(where, std::memory_order_relaxed);
    }
}

[[gnu::always_inline]] inline void access(const volatile void* address, std::size_t bytes, bool write,
                                          const void* where) noexcept {
    if (recording.load(std::memory_order_relaxed)) [[unlikely]] {
        note(address, bytes, write, where);
    }
}

Accesses copy(const Counted& counted) noexcept {
    return {counted.times.load(), counted.moves.load(), counted.where.load()};
}

/// The place in the code, in the form that addr2line(1) expects.
std::string place_in_code(const void* where) {
    Dl_info info{};
    if (dladdr(where, &info) == 0) {
        return "unknown code";
    }
    std::array<char, 32> offset{};
    (void)std::snprintf(
        offset.data(), offset.size(), " 0x%zx",
        static_cast<std::size_t>(static_cast<const char*>(where) - static_cast<const char*>(info.dli_fbase)));
    return info.dli_fname + std::string(offset.data());
}

}  // namespace

void act_as(Role role) noexcept {
    own_role = role;
}

void name_role(const char* thread_name, Role role) {
    const std::size_t n = name_count.load();
    for (std::size_t i = 0; i < n; ++i) {
        if (std::strcmp(names[i].first, thread_name) == 0) {
            names[i].second = role;
            return;
        }
    }
    if (n == kNames) {
        std::abort();
    }
    names[n] = {thread_name, role};
    name_count.store(n + 1, std::memory_order_release);
}

void begin() {
    places = std::make_unique<Place[]>(kPlaces);
    recording.store(true);
}
void end() noexcept {
    recording.store(false);
}

std::uint64_t Line::moves() const noexcept {
    std::uint64_t all = 0;
    for (Role role = 0; role < kRoles; ++role) {
        all += reads[role].moves + writes[role].moves;
    }
    return all;
}

std::string Line::text() const {
    std::string text;
    for (Role role = 0; role < kRoles; ++role) {
        for (const bool write : {true, false}) {
            const Accesses& access = (write ? writes : reads)[role];
            if (access.times != 0) {
                text += "\n  " + std::to_string(role) + (write ? " writes " : " reads ") +
                        std::to_string(access.times) + " times, moves it " + std::to_string(access.moves) +
                        " times, last in " + place_in_code(access.where);
            }
        }
    }
    return text;
}

std::vector<Line> lines() {
    pthread_attr_t attributes;
    void* stack = nullptr;
    std::size_t stack_bytes = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        (void)pthread_attr_getstack(&attributes, &stack, &stack_bytes);
        (void)pthread_attr_destroy(&attributes);
    }
    const auto on_stack = [&](std::uintptr_t line) {
        return line - reinterpret_cast<std::uintptr_t>(stack) < stack_bytes;
    };
    std::vector<Line> all;
    for (std::size_t at = 0; at < kPlaces; ++at) {
        const Place& place = places[at];
        if (place.line.load() == 0 || on_stack(place.line.load())) {
            continue;
        }
        Line line{.address = place.line.load()};
        for (Role role = 0; role < kRoles; ++role) {
            line.reads[role] = copy(place.reads[role]);
            line.writes[role] = copy(place.writes[role]);
        }
        all.push_back(line);
    }
    return all;
}

}  // namespace pollcore::sharing

// ---- Functions that the compiler calls (the interface to the thread sanitizer's runtime) ----

using pollcore::sharing::access;

#define ACCESS(bytes)                                          \
    void __tsan_read##bytes(void* at) {                        \
        access(at, bytes, false, __builtin_return_address(0)); \
    }                                                          \
    void __tsan_write##bytes(void* at) {                       \
        access(at, bytes, true, __builtin_return_address(0));  \
    }                                                          \
    void __tsan_unaligned_read##bytes(void* at) {              \
        access(at, bytes, false, __builtin_return_address(0)); \
    }                                                          \
    void __tsan_unaligned_write##bytes(void* at) {             \
        access(at, bytes, true, __builtin_return_address(0));  \
    }                                                          \
    void __tsan_volatile_read##bytes(void* at) {               \
        access(at, bytes, false, __builtin_return_address(0)); \
    }                                                          \
    void __tsan_volatile_write##bytes(void* at) {              \
        access(at, bytes, true, __builtin_return_address(0));  \
    }

// All orders are sequentially consistent, because an order that is stronger than the requested one is also right.
#define ATOMIC(bits, type)                                                                                       \
    type __tsan_atomic##bits##_load(const volatile type* at, int) {                                              \
        access(at, sizeof(type), false, __builtin_return_address(0));                                            \
        return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                            \
    }                                                                                                            \
    void __tsan_atomic##bits##_store(volatile type* at, type value, int) {                                       \
        access(at, sizeof(type), true, __builtin_return_address(0));                                             \
        __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                                           \
    }                                                                                                            \
    type __tsan_atomic##bits##_exchange(volatile type* at, type value, int) {                                    \
        access(at, sizeof(type), true, __builtin_return_address(0));                                             \
        return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);                                                 \
    }                                                                                                            \
    type __tsan_atomic##bits##_fetch_add(volatile type* at, type value, int) {                                   \
        access(at, sizeof(type), true, __builtin_return_address(0));                                             \
        return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);                                                  \
    }                                                                                                            \
    type __tsan_atomic##bits##_fetch_sub(volatile type* at, type value, int) {                                   \
        access(at, sizeof(type), true, __builtin_return_address(0));                                             \
        return __atomic_fetch_sub(at, value, __ATOMIC_SEQ_CST);                                                  \
    }                                                                                                            \
    type __tsan_atomic##bits##_fetch_and(volatile type* at, type value, int) {                                   \
        access(at, sizeof(type), true, __builtin_return_address(0));                                             \
        return __atomic_fetch_and(at, value, __ATOMIC_SEQ_CST);                                                  \
    }                                                                                                            \
    type __tsan_atomic##bits##_fetch_or(volatile type* at, type value, int) {                                    \
        access(at, sizeof(type), true, __builtin_return_address(0));                                             \
        return __atomic_fetch_or(at, value, __ATOMIC_SEQ_CST);                                                   \
    }                                                                                                            \
    type __tsan_atomic##bits##_fetch_xor(volatile type* at, type value, int) {                                   \
        access(at, sizeof(type), true, __builtin_return_address(0));                                             \
        return __atomic_fetch_xor(at, value, __ATOMIC_SEQ_CST);                                                  \
    }                                                                                                            \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile type* at, type* expected, type value, int, int) { \
        access(at, sizeof(type), true, __builtin_return_address(0));                                             \
        return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);      \
    }                                                                                                            \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile type* at, type* expected, type value, int, int) {   \
        access(at, sizeof(type), true, __builtin_return_address(0));                                             \
        return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);      \
    }

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void** at, void*) {
    access(at, sizeof(void*), true, __builtin_return_address(0));
}
void __tsan_vptr_read(void** at) {
    access(at, sizeof(void*), false, __builtin_return_address(0));
}
void __tsan_read_range(void* at, unsigned long bytes) {
    access(at, bytes, false, __builtin_return_address(0));
}
void __tsan_write_range(void* at, unsigned long bytes) {
    access(at, bytes, true, __builtin_return_address(0));
}
void __tsan_atomic_thread_fence(int) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
void __tsan_atomic_signal_fence(int) {}
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
ATOMIC(8, std::uint8_t)
ATOMIC(16, std::uint16_t)
ATOMIC(32, std::uint32_t)
ATOMIC(64, std::uint64_t)

// The linker redirects calls of memcpy(), memmove() and memset() to these wrappers (--wrap).
void* __real_memcpy(void* to, const void* from, std::size_t bytes);
void* __real_memmove(void* to, const void* from, std::size_t bytes);
void* __real_memset(void* to, int value, std::size_t bytes);
void* __wrap_memcpy(void* to, const void* from, std::size_t bytes) {
    access(from, bytes, false, __builtin_return_address(0));
    access(to, bytes, true, __builtin_return_address(0));
    return __real_memcpy(to, from, bytes);
}
void* __wrap_memmove(void* to, const void* from, std::size_t bytes) {
    access(from, bytes, false, __builtin_return_address(0));
    access(to, bytes, true, __builtin_return_address(0));
    return __real_memmove(to, from, bytes);
}
void* __wrap_memset(void* to, int value, std::size_t bytes) {
    access(to, bytes, true, __builtin_return_address(0));
    return __real_memset(to, value, bytes);
}

}  // extern "C"
