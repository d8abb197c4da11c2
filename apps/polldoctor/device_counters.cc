#include "device_counters.hpp"

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "in_child.hpp"

namespace pollcore::doctor {
namespace {

// For the counters of one device.
constexpr std::chrono::milliseconds kFirmwareWithin{5000};
constexpr std::size_t kCountersBytesMax = 1u << 20;

}  // namespace

std::vector<std::string> counter_files(const Tree& tree, const std::string& verbs_name, std::uint32_t port) {
    std::vector<std::string> files;
    for (const char* const kind : {"hw_counters", "counters"}) {
        const std::string directory = fmt::format("/sys/class/infiniband/{}/ports/{}/{}", verbs_name, port, kind);
        for (const std::string& name : tree.list(directory)) {
            if (name != "lifespan") {  // how long the kernel keeps a value, in ms
                files.push_back(directory + "/" + name);
            }
        }
    }
    return files;
}

void read_counters(Tree& tree, const std::vector<std::string>& files) {
    const ChildAnswer answer = in_child(
        [&](const auto& write) {
            for (const std::string& file : files) {
                const Reading& reading = tree.read(file);
                write(fmt::format("{} {}\n{}", reading.error, reading.text.size(), reading.text));
            }
        },
        kFirmwareWithin, kCountersBytesMax);
    std::istringstream pieces(answer.text);
    for (const std::string& file : files) {
        Reading reading{.text = {}, .error = ETIMEDOUT};
        int error = 0;
        std::size_t size = 0;
        if (pieces >> error >> size && size <= answer.text.size()) {
            pieces.ignore(1);  // the end of the line
            std::string text(size, '\0');
            if (pieces.read(text.data(), static_cast<std::streamsize>(size))) {
                reading = {.text = std::move(text), .error = error};
            }
        }
        tree.put(file, std::move(reading));
    }
}

}  // namespace pollcore::doctor
