// Programs that load libibverbs by dlopen(3) look for its functions by dlsym(3), and so miss a preloaded library. This
// library therefore answers dlsym() and dlvsym() for the functions that it has, when the program asks a library by its
// handle. All other questions go to the C library.
//
// The C library finds out who asks from the return address, for RTLD_NEXT. So the two functions are jumps and no calls:
// the caller stays the caller.
#include "symbol_lookup.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "dlsym() has no code for this machine"
#endif

// What the jumps go to. Filled in by find_lookups().
extern "C" {
__attribute__((visibility("hidden"))) void* pollcore_genuine_dlsym = nullptr;
__attribute__((visibility("hidden"))) void* pollcore_genuine_dlvsym = nullptr;
__attribute__((visibility("hidden"))) void* pollcore_served_symbol(void* handle, const char* name) noexcept;
}

// Sanitizers and memory allocators call dlsym() while they set themselves up. So what runs then is not instrumented,
// calls no function of other libraries, and allocates nothing.
#define POLLCORE_BARE __attribute__((no_sanitize("address", "undefined", "thread")))

namespace pollcore::served {
namespace {

// The dynamic symbols of a loaded library.
struct Symbols {
    ElfW(Addr) base = 0;
    const ElfW(Sym) * symbols = nullptr;
    const char* names = nullptr;
    const std::uint32_t* hash = nullptr;  // DT_GNU_HASH
};

POLLCORE_BARE bool equal(const char* one, const char* other) noexcept {
    for (; *one == *other; ++one, ++other) {
        if (*one == '\0') {
            return true;
        }
    }
    return false;
}

POLLCORE_BARE const char* file_of(const char* path) noexcept {
    const char* file = path;
    for (; *path != '\0'; ++path) {
        file = *path == '/' ? path + 1 : file;
    }
    return file;
}

POLLCORE_BARE Symbols symbols_of(const link_map& library) noexcept {
    Symbols found;
    found.base = library.l_addr;
    for (const ElfW(Dyn)* entry = library.l_ld; entry->d_tag != DT_NULL; ++entry) {
        const ElfW(Addr) at = entry->d_un.d_ptr;
        if (entry->d_tag == DT_SYMTAB) {
            found.symbols = reinterpret_cast<const ElfW(Sym)*>(at);
        } else if (entry->d_tag == DT_STRTAB) {
            found.names = reinterpret_cast<const char*>(at);
        } else if (entry->d_tag == DT_GNU_HASH) {
            found.hash = reinterpret_cast<const std::uint32_t*>(at);
        }
    }
    return found;
}

// Only the hash table tells how many symbols there are: its last chain ends with the last symbol.
POLLCORE_BARE std::uint32_t count_of(const Symbols& in) noexcept {
    const std::uint32_t buckets = in.hash[0];
    const std::uint32_t first = in.hash[1];
    const std::uint32_t* const bucket = in.hash + 4 + in.hash[2] * (sizeof(ElfW(Addr)) / sizeof *in.hash);
    const std::uint32_t* const chain = bucket + buckets;
    std::uint32_t last = 0;
    for (std::uint32_t i = 0; i < buckets; ++i) {
        last = bucket[i] > last ? bucket[i] : last;
    }
    if (last < first) {
        return first;
    }
    while ((chain[last - first] & 1) == 0) {
        ++last;
    }
    return last + 1;
}

POLLCORE_BARE void* find(const Symbols& in, const char* name) noexcept {
    const std::uint32_t count = in.symbols == nullptr || in.hash == nullptr ? 0 : count_of(in);
    for (std::uint32_t i = 0; i < count; ++i) {
        const ElfW(Sym)& one = in.symbols[i];
        if (one.st_shndx != SHN_UNDEF && (one.st_info & 0xf) == STT_FUNC && equal(name, in.names + one.st_name)) {
            return reinterpret_cast<void*>(in.base + one.st_value);
        }
    }
    return nullptr;
}

// Two threads at once find the same. The list of libraries is the loader's, for debuggers; the C library is in it from
// the start.
POLLCORE_BARE void find_lookups() noexcept {
    if (pollcore_genuine_dlvsym != nullptr) {
        return;
    }
    for (const link_map* library = _r_debug.r_map; library != nullptr; library = library->l_next) {
        const char* const file = file_of(library->l_name);
        // Before version 2.34 of the C library the functions are in a library of their own.
        if (equal(file, "libc.so.6") || equal(file, "libdl.so.2")) {
            const Symbols symbols = symbols_of(*library);
            if (void* const found = find(symbols, "dlsym"); found != nullptr) {
                pollcore_genuine_dlsym = found;
                pollcore_genuine_dlvsym = find(symbols, "dlvsym");
            }
        }
    }
    if (pollcore_genuine_dlvsym == nullptr) {
        static constexpr char kText[] = "pollcore-verbs: the C library has no dlsym()\n";
        (void)!::write(STDERR_FILENO, kText, sizeof kText - 1);
        std::abort();
    }
}

// This library, for lookups among its own functions.
void* own_library() noexcept {
    static void* const own = [] {
        Dl_info info{};
        return ::dladdr(reinterpret_cast<void*>(&own_library), &info) == 0
                   ? nullptr
                   : ::dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }();
    return own;
}

}  // namespace

void* genuine_dlsym(void* handle, const char* name) noexcept {
    find_lookups();
    return reinterpret_cast<void* (*)(void*, const char*)>(pollcore_genuine_dlsym)(handle, name);
}

}  // namespace pollcore::served

POLLCORE_BARE void* pollcore_served_symbol(void* handle, const char* name) noexcept {
    using namespace pollcore::served;
    find_lookups();
    if (handle == RTLD_NEXT || handle == RTLD_DEFAULT || name == nullptr) {
        return nullptr;
    }
    const char* const begin = name[0] == '_' ? name + 1 : name;
    if (begin[0] != 'i' || begin[1] != 'b' || begin[2] != 'v' || begin[3] != '_') {
        return nullptr;
    }
    void* const own = own_library();
    return own == nullptr ? nullptr : genuine_dlsym(own, name);
}

#if defined(__x86_64__)
#define POLLCORE_LOOKUP(function, genuine)                                            \
    __asm__(".text\n.globl " #function "\n.type " #function ", @function\n" #function \
            ":\n"                                                                     \
            "endbr64\n"                                                               \
            "push %rdi\npush %rsi\npush %rdx\n"                                       \
            "call pollcore_served_symbol\n"                                           \
            "pop %rdx\npop %rsi\npop %rdi\n"                                          \
            "test %rax, %rax\njz 1f\nret\n"                                           \
            "1: jmp *" #genuine                                                       \
            "(%rip)\n"                                                                \
            ".size " #function ", .-" #function "\n")
#else
#define POLLCORE_LOOKUP(function, genuine)                                            \
    __asm__(".text\n.globl " #function "\n.type " #function ", @function\n" #function \
            ":\n"                                                                     \
            "stp x29, x30, [sp, #-48]!\nmov x29, sp\n"                                \
            "stp x0, x1, [sp, #16]\nstr x2, [sp, #32]\n"                              \
            "bl pollcore_served_symbol\n"                                             \
            "mov x16, x0\n"                                                           \
            "ldr x2, [sp, #32]\nldp x0, x1, [sp, #16]\n"                              \
            "ldp x29, x30, [sp], #48\n"                                               \
            "cbz x16, 1f\nmov x0, x16\nret\n"                                         \
            "1: adrp x16, " #genuine                                                  \
            "\n"                                                                      \
            "ldr x16, [x16, :lo12:" #genuine                                          \
            "]\nbr x16\n"                                                             \
            ".size " #function ", .-" #function "\n")
#endif

POLLCORE_LOOKUP(dlsym, pollcore_genuine_dlsym);
POLLCORE_LOOKUP(dlvsym, pollcore_genuine_dlvsym);
