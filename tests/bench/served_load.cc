// Runs the posts and polls of a verbs program for an instruction counter, ROUNDS times. See instruction_guard.py.
#include "served_load.hpp"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <utility>

namespace pollcore::bench {
namespace {

constexpr const char* kUsage =
    "usage: served-load ROUNDS BURST writes|inline|messages|extended\n"
    "       served-load ROUNDS 1 nothing\n"
    "BURST is at most 32. POLLCORE_TEST_VERBS is the device's name.\n";

int run(int argc, char** argv) {
    constexpr std::array<std::pair<const char*, Kind>, 5> kKinds{{{"writes", Kind::writes},
                                                                  {"inline", Kind::inline_writes},
                                                                  {"messages", Kind::messages},
                                                                  {"extended", Kind::extended},
                                                                  {"nothing", Kind::nothing}}};
    const char* const device = std::getenv("POLLCORE_TEST_VERBS");
    const auto number = [&](int i) { return static_cast<std::uint32_t>(std::strtoul(argv[i], nullptr, 10)); };
    const auto* const kind =
        argc == 4 ? std::ranges::find_if(kKinds, [&](const auto& one) { return std::strcmp(one.first, argv[3]) == 0; })
                  : kKinds.end();
    if (kind == kKinds.end() || device == nullptr || number(2) < 1 || number(2) > kBurstMax) {
        std::cerr << kUsage;
        return 2;
    }
    ServedLoad(kind->second, number(2), device).run(number(1));
    return 0;
}

}  // namespace
}  // namespace pollcore::bench

int main(int argc, char** argv) {
    try {
        return pollcore::bench::run(argc, argv);
    } catch (const std::exception& error) {
        std::cerr << "served-load: " << error.what() << '\n';
        return 1;
    }
}
