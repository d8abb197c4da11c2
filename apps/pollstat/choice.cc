#include "choice.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "harmless.hpp"
#include "pollcore/error.hpp"

namespace pollcore::stat {

std::vector<Found> find_all() {
    std::vector<Found> all;
    for (const std::filesystem::path& file : statistics::find_statistics()) {
        Found found{.file = file, .snapshot = {}, .error = {}};
        try {
            found.snapshot = statistics::read_statistics(file);
        } catch (const Error& error) {
            if (error.code() == std::errc::no_such_file_or_directory) {
                continue;  // its runtime has ended meanwhile
            }
            found.error = error.what();
        }
        all.push_back(std::move(found));
    }
    return all;
}

std::string name_of(const statistics::Snapshot& snapshot) {
    const auto& name = snapshot.header.name;
    return harmless({name.data(), ::strnlen(name.data(), name.size())});
}

bool is_called(const statistics::Snapshot& snapshot, const std::filesystem::path& file, const std::string& wanted) {
    return wanted == std::to_string(snapshot.header.pid) || wanted == name_of(snapshot) || file == wanted;
}

std::filesystem::path choose(const std::string& wanted) {
    if (wanted.find('/') != std::string::npos) {
        return wanted;
    }
    std::string others;
    std::vector<const Found*> fitting;
    const std::vector<Found> all = find_all();
    for (const Found& each : all) {
        if (!each.error.empty()) {
            others += fmt::format("\n  {}", harmless(each.error));
            continue;
        }
        const std::string pid = std::to_string(each.snapshot.header.pid);
        others +=
            fmt::format("\n  {} (process {}{})", name_of(each.snapshot), pid, each.snapshot.alive ? "" : ", dead");
        if (wanted.empty() ? each.snapshot.alive : is_called(each.snapshot, each.file, wanted)) {
            fitting.push_back(&each);
        }
    }
    if (std::any_of(fitting.begin(), fitting.end(), [](const Found* each) { return each->snapshot.alive; })) {
        std::erase_if(fitting, [](const Found* each) { return !each->snapshot.alive; });
    }
    if (fitting.size() == 1) {
        return fitting.front()->file;
    }
    if (all.empty()) {
        throw Error(ENOENT, "this host has no runtime with statistics");
    }
    throw Error(fitting.empty() ? ENOENT : EINVAL,
                fmt::format("{}; there are:{}",
                            fitting.empty() ? "there is no such runtime" : "name one of the runtimes", others));
}

}  // namespace pollcore::stat
