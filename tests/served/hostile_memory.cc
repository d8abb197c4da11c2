// Attacks on what the library has in its process: descriptors, shared memory, and itself.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "hostile_attacks.hpp"
#include "hostile_objects.hpp"

namespace pollcore::test::hostile {

void close_all_descriptors() {
    Objects all = make();
    traffic(all, 20);
    (void)::close_range(3, ~0U, 0);
    traffic(all, 200);
    (void)make_qp(all, IBV_QPT_RC);
    (void)register_all(all);
    // Others take the numbers.
    for (int i = 0; i < 20; ++i) {
        (void)::open("/dev/null", O_RDWR);
    }
    traffic(all, 200);
    end(all);
}

namespace {

struct Mapping {
    char* begin = nullptr;
    std::size_t bytes = 0;
};

// What the library shares with the daemon: memory whose name has `name` in it.
std::vector<Mapping> shared_mappings(const char* name) {
    std::vector<Mapping> found;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        std::uintptr_t begin = 0;
        std::uintptr_t end = 0;
        if (line.find(std::string("memfd:pollcore") + name) != std::string::npos &&
            std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) == 2) {
            found.push_back({reinterpret_cast<char*>(begin), end - begin});
        }
    }
    if (found.empty()) {
        fail("the library has no such memory");
    }
    return found;
}

}  // namespace

void unmap_what_is_shared() {
    Objects all = make();
    traffic(all, 20);
    const auto way = pick(3);
    for (const Mapping& one : shared_mappings(pick(2) == 0 ? "" : " rings")) {
        if (way == 0) {
            (void)::munmap(one.begin, one.bytes);
        } else {
            (void)::mmap(one.begin, one.bytes, way == 1 ? PROT_READ | PROT_WRITE : PROT_READ,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        }
    }
    traffic(all, 200);
    end(all);
}

void garble_rings() {
    Objects all = make();
    traffic(all, 20);
    const std::vector<Mapping> rings = shared_mappings(" rings");
    const auto until = Clock::now() + std::chrono::milliseconds(50);
    for (const auto way = pick(4); Clock::now() < until;) {
        const Mapping& one = rings[pick(rings.size())];
        for (int i = 0; i < 256; ++i) {
            char* const at = one.begin + pick(one.bytes / 8) * 8;
            std::uint64_t word = 0;
            std::memcpy(&word, at, sizeof word);
            word = way == 0 ? g_random() : way == 1 ? ~word : way == 2 ? word + pick(16) : pick(4096);
            std::memcpy(at, &word, sizeof word);
        }
        traffic(all, 1);
    }
    end(all);
}

void unload_the_library() {
    Objects all = make();
    std::istringstream preloaded(std::getenv("LD_PRELOAD") == nullptr ? "" : std::getenv("LD_PRELOAD"));
    traffic(all, 20);
    for (std::string name; preloaded >> name;) {
        for (const std::string& library : {name, std::string("libibverbs.so.1")}) {
            void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD);
            for (int i = 0; i < 10 && handle != nullptr; ++i) {
                (void)::dlclose(handle);
            }
        }
    }
    traffic(all, 20);
    end(all);
}

}  // namespace pollcore::test::hostile
