#include "told_once.hpp"

#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <set>

namespace pollcore::served {
namespace {

enum class Loudness { off, once, all };

Loudness loudness() noexcept {
    const char* value = std::getenv("POLLCORE_VERBS_LOG");
    const std::string_view text = value == nullptr ? "once" : value;
    return text == "off" ? Loudness::off : text == "all" ? Loudness::all : Loudness::once;
}

}  // namespace

void tell_once(std::string_view what, const std::string& text) noexcept {
    static const Loudness loud = loudness();
    if (loud == Loudness::off) {
        return;
    }
    try {
        // Never freed: a program may call verbs while its static objects are destroyed.
        static auto& lock = *new std::mutex;
        static auto& told = *new std::set<std::string, std::less<>>;
        {
            const std::lock_guard guard(lock);
            if (!told.emplace(what).second && loud == Loudness::once) {
                return;
            }
        }
        const std::string line = "pollcore-verbs: " + text + "\n";
        (void)!::write(STDERR_FILENO, line.data(), line.size());
    } catch (...) {
        // No memory for the line: the errno value of the call has to do.
    }
}

}  // namespace pollcore::served
