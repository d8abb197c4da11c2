// pollcore-run: starts a verbs program over pollcored, by preloading libpollcore-verbs.so.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "pollcore/attach.hpp"
#include "program_check.hpp"
#include "run_command_line.hpp"
#include "verbs/remedy.hpp"

namespace pollcore::run {
namespace {

constexpr const char* kLibrary = "libpollcore-verbs.so";

// Beside this program in the build directory, else where it is installed.
std::filesystem::path library_path() {
    std::error_code error;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
    const auto beside = self.parent_path() / kLibrary;
    return !error && std::filesystem::exists(beside) ? beside
                                                     : std::filesystem::path(POLLCORE_LIBRARY_FOLDER) / kLibrary;
}

// As execvp(3) finds it.
std::optional<std::filesystem::path> find_program(const std::string& name) {
    if (name.find('/') != std::string::npos) {
        return std::filesystem::exists(name) ? std::optional<std::filesystem::path>(name) : std::nullopt;
    }
    const char* path = std::getenv("PATH");
    std::istringstream folders(path == nullptr ? "/bin:/usr/bin" : path);
    for (std::string folder; std::getline(folders, folder, ':');) {
        const auto file = std::filesystem::path(folder.empty() ? "." : folder) / name;
        if (::access(file.c_str(), X_OK) == 0) {
            return file;
        }
    }
    return std::nullopt;
}

const char* text_of(Obstacle obstacle) noexcept {
    switch (obstacle) {
        case Obstacle::none: break;
        case Obstacle::is_static: return "is linked statically, so no library can be preloaded: it runs natively";
        case Obstacle::has_privileges:
            return "has the set-user-ID or set-group-ID bit, so the loader preloads nothing: it runs natively";
        case Obstacle::no_elf: return "is a script; check the program that interprets it";
    }
    return "";
}

int print_check(const std::filesystem::path& program) {
    const ProgramCheck check = check_program(program, exported_functions(library_path()));
    if (check.obstacle != Obstacle::none) {
        fmt::print("{} {}\n", program.string(), text_of(check.obstacle));
    }
    static constexpr std::pair<Fate, const char*> kFates[] = {
        {Fate::served, "served by pollcored"},
        {Fate::passed_on, "passed on to rdma-core"},
        {Fate::impossible, "not served; the program runs if it can do without them"},
    };
    for (const auto& [fate, title] : kFates) {
        std::map<std::string, std::vector<std::string>> users;
        for (const Use& one : check.uses) {
            if (one.fate == fate) {
                users[one.symbol].push_back(one.user.filename().string());
            }
        }
        fmt::print("{}: {}\n", title, users.size());
        for (const auto& [symbol, files] : users) {
            fmt::print("  {:<32} {}\n", symbol, fmt::join(files, " "));
        }
    }
    if (check.uses.empty()) {
        fmt::print("The program imports nothing of the verbs. It may load plugins that do: check those, too.\n");
    }
    return check.obstacle == Obstacle::none ? 0 : kExitUnserved;
}

// Says what is wrong before the program does, which only finds no device.
bool may_attach(const std::string& socket) {
    try {
        Attachment attachment({.path = socket, .own_memory = true});
        return true;
    } catch (const Error& error) {
        fmt::print(stderr, "pollcore-run: {}: {}\n", error.what(), served::remedy(error.code().value(), socket));
        return false;
    }
}

int start(const RunCommandLine& line, const std::vector<std::string>& command) {
    const auto program = find_program(command.front());
    if (!program) {
        fmt::print(stderr, "pollcore-run: {}: {}\n", command.front(), std::strerror(ENOENT));
        return kExitNoProgram;
    }
    if (line.check) {
        return print_check(*program);
    }
    if (!may_attach(line.socket)) {
        return kExitFailed;
    }
    if (const Obstacle obstacle = obstacle_of(*program);
        obstacle == Obstacle::is_static || obstacle == Obstacle::has_privileges) {
        fmt::print(stderr, "pollcore-run: {} {}\n", program->string(), text_of(obstacle));
    }
    const char* before = std::getenv("LD_PRELOAD");
    const std::string preload =
        library_path().string() + (before == nullptr || *before == '\0' ? "" : ":") + (before == nullptr ? "" : before);
    ::setenv("LD_PRELOAD", preload.c_str(), 1);
    ::setenv("POLLCORE_SOCKET", line.socket.c_str(), 1);
    ::setenv("POLLCORE_VERBS_LOG", line.log.c_str(), 1);
    ::setenv("POLLCORE_VERBS_WORKER", line.worker.c_str(), 1);
    ::setenv("POLLCORE_VERBS", line.beside ? "beside" : "", 1);
    std::vector<char*> arguments;
    for (const std::string& one : command) {
        arguments.push_back(const_cast<char*>(one.c_str()));
    }
    arguments.push_back(nullptr);
    ::execvp(program->c_str(), arguments.data());
    const int error = errno;
    fmt::print(stderr, "pollcore-run: {}: {}\n", program->string(), std::strerror(error));
    return error == ENOENT ? kExitNoProgram : kExitCannotRun;
}

}  // namespace
}  // namespace pollcore::run

int main(int argc, char** argv) {
    using namespace pollcore::run;
    RunCommandLine line;
    try {
        line.app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        const int code = line.app.exit(error);
        return code == 0 ? 0 : kExitFailed;
    }
    const std::vector<std::string> command = line.command();
    if (command.empty()) {
        fmt::print(stderr, "pollcore-run: name a program; --help says more\n");
        return kExitFailed;
    }
    try {
        return start(line, command);
    } catch (const std::exception& error) {
        fmt::print(stderr, "pollcore-run: {}\n", error.what());
        return kExitFailed;
    }
}
