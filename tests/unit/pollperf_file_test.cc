// The files into which pollperf writes its results.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "pollcore/error.hpp"
#include "pollperf/report/output_file.hpp"

namespace pollcore::perf {
namespace {

namespace fs = std::filesystem;

class PollperfFile : public testing::Test {
protected:
    PollperfFile() {
        std::string pattern = (fs::temp_directory_path() / "pollperf-XXXXXX").string();
        folder_ = ::mkdtemp(pattern.data());
    }
    ~PollperfFile() override {
        std::error_code error;
        fs::remove_all(folder_, error);
    }
    static std::string content(const fs::path& file) {
        std::ifstream in(file);
        return {std::istreambuf_iterator<char>(in), {}};
    }
    // Runs the call, and returns its error's text, or nothing.
    template <class Call>
    static std::string refused(Call&& call) {
        try {
            call();
        } catch (const Error& error) {
            return error.what();
        }
        return "";
    }
    std::size_t files() const {
        return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
    }

    fs::path folder_;
};

TEST_F(PollperfFile, AnOldFileIsReplacedAndKeepsItsPermissionsAndLinks) {
    const fs::path file = folder_ / "out.json", link = folder_ / "link";
    write_file(file, "old and long", "--json");
    ::chmod(file.c_str(), 0640);
    fs::create_symlink("out.json", link);
    struct stat before {};
    ASSERT_EQ(::stat(file.c_str(), &before), 0);
    std::ifstream reader(file);
    write_file(link, "new", "--json");
    EXPECT_EQ(content(file), "new");
    EXPECT_TRUE(fs::is_symlink(link));
    struct stat found {};
    ASSERT_EQ(::stat(file.c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 07777, 0640u);
    // Whoever had the old file open still reads all of it.
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(reader), {}), "old and long");
    EXPECT_EQ(files(), 2u);
}

TEST_F(PollperfFile, ACheckChangesNothing) {
    const fs::path file = folder_ / "out.json";
    check_writable(file, "--json");
    EXPECT_EQ(files(), 0u);
    write_file(file, "old", "--json");
    check_writable(file, "--json");
    EXPECT_EQ(content(file), "old");
    EXPECT_EQ(files(), 1u);
    const fs::path here = fs::current_path();
    fs::current_path(folder_);
    EXPECT_NO_THROW(check_writable("without-a-folder.json", "--json"));
    fs::current_path(here);
}

TEST_F(PollperfFile, WhatCannotBeWrittenIsRefusedByBothWithFileAndOption) {
    write_file(folder_ / "file", "", "--csv");
    for (const fs::path& file : {folder_ / "missing" / "out", folder_, folder_ / "file" / "out", fs::path()}) {
        for (const auto& call : {+[](const fs::path& at) { check_writable(at, "--csv"); },
                                 +[](const fs::path& at) { write_file(at, "text", "--csv"); }}) {
            const std::string what = refused([&] { call(file); });
            EXPECT_NE(what.find("(--csv)"), std::string::npos) << file << ": " << what;
            EXPECT_NE(what.find(file.string()), std::string::npos) << what;
        }
    }
    EXPECT_EQ(files(), 1u);
}

TEST_F(PollperfFile, PermissionsAreChecked) {
    const fs::path file = folder_ / "out";
    write_file(file, "old", "--json");
    // Root may write everything, so a process without its rights tries it.
    constexpr uid_t kNobody = 65534;
    const bool root = ::geteuid() == 0;
    if (root) {
        ASSERT_EQ(::chown(folder_.c_str(), kNobody, kNobody), 0);
        ASSERT_EQ(::chown(file.c_str(), kNobody, kNobody), 0);
    }
    const auto attempt = [&]() -> int {
        if (root && (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0)) {
            return 1;
        }
        ::chmod(file.c_str(), 0400);
        if (refused([&] { check_writable(file, "--json"); }).empty()) {
            return 2;
        }
        ::chmod(file.c_str(), 0600);
        ::chmod(folder_.c_str(), 0500);
        if (!refused([&] { check_writable(file, "--json"); }).empty()) {
            return 3;
        }
        if (refused([&] { check_writable(folder_ / "other", "--json"); }).empty()) {
            return 4;
        }
        write_file(file, "new", "--json");
        return content(file) == "new" ? 0 : 5;
    };
    const pid_t child = ::fork();
    if (child == 0) {
        ::_exit(attempt());
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    ::chmod(folder_.c_str(), 0700);
}

TEST_F(PollperfFile, ADescriptorOfThisProcessIsWrittenWhereItStands) {
    const int descriptor = ::open((folder_ / "out").c_str(), O_CREAT | O_WRONLY, 0600);
    ASSERT_GE(descriptor, 0);
    ASSERT_EQ(::write(descriptor, "before ", 7), 7);
    const std::string path = fmt::format("/dev/fd/{}", descriptor);
    check_writable(path, "--json");
    write_file(path, "middle ", "--json");
    ASSERT_EQ(::write(descriptor, "after", 5), 5);
    ::close(descriptor);
    EXPECT_EQ(content(folder_ / "out"), "before middle after");
    EXPECT_NE(refused([&] { check_writable(path, "--json"); }), "");
    EXPECT_EQ(refused([&] { write_file("/dev/null", "text", "--json"); }), "");
    EXPECT_TRUE(fs::is_character_file("/dev/null"));
    EXPECT_NE(refused([&] { write_file("/dev/full", "text", "--json"); }), "");
}

}  // namespace
}  // namespace pollcore::perf
