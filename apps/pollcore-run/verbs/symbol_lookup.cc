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
#include <cstring>
#include <string_view>

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "dlsym() has no code for this machine"
#endif

// What the jumps go to. Filled in by find_lookups().
extern "C" {
__attribute__((visibility("hidden"))) void* pollcore_genuine_dlsym = nullptr;
__attribute__((visibility("hidden"))) void* pollcore_genuine_dlvsym = nullptr;
__attribute__((visibility("hidden"))) void* pollcore_served_symbol(void* handle, const char* name) noexcept;
}

namespace pollcore::served {
namespace {

// The dynamic symbols of a loaded library.
class Symbols {
public:
    explicit Symbols(const dl_phdr_info& library) noexcept {
        for (int i = 0; i < library.dlpi_phnum; ++i) {
            if (library.dlpi_phdr[i].p_type == PT_DYNAMIC) {
                read(reinterpret_cast<const ElfW(Dyn)*>(library.dlpi_addr + library.dlpi_phdr[i].p_vaddr),
                     library.dlpi_addr);
            }
        }
    }

    [[nodiscard]] void* find(std::string_view name) const noexcept {
        for (std::uint32_t i = 0; symbols_ != nullptr && hash_ != nullptr && i < count(); ++i) {
            const ElfW(Sym)& one = symbols_[i];
            if (one.st_shndx != SHN_UNDEF && ELF64_ST_TYPE(one.st_info) == STT_FUNC && name == names_ + one.st_name) {
                return reinterpret_cast<void*>(base_ + one.st_value);
            }
        }
        return nullptr;
    }

private:
    void read(const ElfW(Dyn) * entry, ElfW(Addr) base) noexcept {
        base_ = base;
        for (; entry->d_tag != DT_NULL; ++entry) {
            const void* const at = reinterpret_cast<const void*>(entry->d_un.d_ptr);
            switch (entry->d_tag) {
                case DT_SYMTAB: symbols_ = static_cast<const ElfW(Sym)*>(at); break;
                case DT_STRTAB: names_ = static_cast<const char*>(at); break;
                case DT_GNU_HASH: hash_ = static_cast<const std::uint32_t*>(at); break;
                default: break;
            }
        }
    }

    // Only the hash table tells how many symbols there are: its last chain ends with the last symbol.
    [[nodiscard]] std::uint32_t count() const noexcept {
        const std::uint32_t buckets = hash_[0];
        const std::uint32_t first = hash_[1];
        const std::uint32_t* const bucket = hash_ + 4 + hash_[2] * (sizeof(ElfW(Addr)) / sizeof *hash_);
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

    ElfW(Addr) base_ = 0;
    const ElfW(Sym) * symbols_ = nullptr;
    const char* names_ = nullptr;
    const std::uint32_t* hash_ = nullptr;
};

int look_into(dl_phdr_info* library, std::size_t, void*) noexcept {
    const std::string_view path = library->dlpi_name;
    const std::string_view file = path.substr(path.rfind('/') + 1);
    // Before version 2.34 of the C library the functions are in a library of their own.
    if (file != "libc.so.6" && file != "libdl.so.2") {
        return 0;
    }
    const Symbols symbols(*library);
    if (pollcore_genuine_dlsym == nullptr) {
        pollcore_genuine_dlsym = symbols.find("dlsym");
        pollcore_genuine_dlvsym = symbols.find("dlvsym");
    }
    return 0;
}

void find_lookups() noexcept {
    // Two threads at once find the same.
    if (pollcore_genuine_dlsym == nullptr) {
        ::dl_iterate_phdr(look_into, nullptr);
        if (pollcore_genuine_dlsym == nullptr || pollcore_genuine_dlvsym == nullptr) {
            static constexpr std::string_view kText = "pollcore-verbs: the C library has no dlsym()\n";
            (void)!::write(2, kText.data(), kText.size());
            std::abort();
        }
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

void* pollcore_served_symbol(void* handle, const char* name) noexcept {
    using namespace pollcore::served;
    find_lookups();
    const std::string_view wanted = name == nullptr ? "" : name;
    if (handle == RTLD_NEXT || handle == RTLD_DEFAULT ||
        (!wanted.starts_with("ibv_") && !wanted.starts_with("_ibv_"))) {
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
