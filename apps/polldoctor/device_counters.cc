#include "device_counters.hpp"

#include <fmt/format.h>

namespace pollcore::doctor {

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

}  // namespace pollcore::doctor
